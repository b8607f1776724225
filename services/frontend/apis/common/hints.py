"""Scheduling hints of Dynamo's clients: the member `nvext` in the body of any API.

Unknown members and values of a wrong type are ignored instead of refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from schemas.conversation import Hints


class _AgentHints(Struct):
    latency_sensitivity: float | None = None
    priority: int | None = None
    osl: int | None = None
    speculative_prefill: bool | None = None


def hints(nvext: object, *, priority: object = None, cache_salt: object = None) -> Hints:
    """The hints in a body's `nvext`, `priority` and `cache_salt` (vLLM's spelling), each as decoded JSON or None."""
    members: dict[str, Any] = nvext if isinstance(nvext, dict) else {}
    given = members.get("agent_hints")
    try:
        agent = msgspec.convert(given, _AgentHints) if isinstance(given, dict) else _AgentHints()
    except msgspec.ValidationError:
        agent = _AgentHints()
    own = priority if isinstance(priority, int) and not isinstance(priority, bool) else None
    return Hints(
        latency_sensitivity=agent.latency_sensitivity,
        priority=agent.priority if agent.priority is not None else own,
        osl=agent.osl,
        speculative_prefill=bool(agent.speculative_prefill),
        cache_salt=cache_salt if isinstance(cache_salt, str) and cache_salt else None,
    )


def first_header(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The first of these headers that is not empty; the session, where clients send it in one of several."""
    return next((headers[name] for name in names if headers.get(name)), None)


def header_flag(headers: Mapping[str, str], name: str, default: bool) -> bool:
    """The switch in a header."""
    return default if name not in headers else headers[name].lower() in ("1", "true")
