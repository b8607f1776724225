"""Scheduling hints of Dynamo's clients: the member `nvext` in the body of any API.

A member of a wrong type is refused like that of any other field; unknown ones are ignored.
"""

from msgspec import Struct

from schemas.conversation import Hints
from services.frontend.apis.shared.bounds import Integer, Limit


class AgentHints(Struct):
    """An agent's hints."""

    latency_sensitivity: float | None = None
    priority: Integer | None = None
    osl: Limit | None = None
    speculative_prefill: bool | None = None


class Nvext(Struct):
    """Dynamo's extensions of a request."""

    agent_hints: AgentHints | None = None


def hints(nvext: Nvext | None, *, priority: int | None, cache_salt: str | None) -> Hints:
    """The hints in a body's `nvext`, `priority` and `cache_salt` (vLLM's spelling)."""
    agent = (nvext.agent_hints if nvext is not None else None) or AgentHints()
    return Hints(
        latency_sensitivity=agent.latency_sensitivity,
        priority=agent.priority if agent.priority is not None else priority,
        osl=agent.osl,
        speculative_prefill=bool(agent.speculative_prefill),
        cache_salt=cache_salt or None,
    )
