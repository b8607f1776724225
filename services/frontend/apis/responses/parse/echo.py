"""Makes the members of a Response that repeat its request. On one line, as events must be."""

from typing import Any

import msgspec
from msgspec import Raw

from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.members import convert
from services.frontend.apis.shared.decode import one_line
from services.frontend.apis.shared.field_types import is_set
from services.runtime.caches.memo import Memo

_TOOL_DEFAULTS = dict.fromkeys(("description", "parameters", "strict"), Raw(b"null"))


def echo_of(
    body: wire.ResponsesBody,
    reasoning: wire.ResponsesReasoning,
    text: wire.TextConfig,
    memo: Memo[Raw],
) -> dict[str, Any]:
    """The values of the request, or the native defaults. `memo` remembers the echo of tools."""
    echo: dict[str, Any] = {
        "instructions": _instructions(body.instructions),
        "previous_response_id": body.previous_response_id,
        "tools": _tools(body.tools or [], memo),
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": _reasoning(reasoning),
        "text": _text(body.text, text),
        "truncation": body.truncation or "disabled",
        "temperature": _or_one(body.temperature),
        "top_p": _or_one(body.top_p),
        "top_logprobs": body.top_logprobs or 0,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "store": body.store is not False,
        "background": bool(body.background),
        "service_tier": "default",
        "metadata": body.metadata or {},
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "safety_identifier": body.safety_identifier,
        "user": body.user,
    }
    if is_set(body.prompt_cache_options):
        echo["prompt_cache_options"] = one_line(body.prompt_cache_options)
    return echo


def _instructions(instructions: str | None) -> Raw | None:
    if instructions is None:
        return None
    return Raw(msgspec.json.encode(instructions))


def _tool_choice(choice: Raw) -> Raw | str:
    if is_set(choice):
        return one_line(choice)
    return "auto"


def _reasoning(settings: wire.ResponsesReasoning) -> dict[str, str | None]:
    echo: dict[str, str | None] = {"effort": settings.effort, "summary": settings.summary}
    if settings.summary == "none":
        echo["summary"] = None
    if settings.context:
        echo["context"] = settings.context
    return echo


def _text(raw: Raw, settings: wire.TextConfig) -> Raw | dict[str, Any]:
    if settings.format:
        return one_line(raw)
    echo: dict[str, Any] = {"format": {"type": "text"}}
    if settings.verbosity:
        echo["verbosity"] = settings.verbosity
    return echo


def _or_one(value: float | None) -> float:
    return 1.0 if value is None else value


def _tools(tools: list[Raw], memo: Memo[Raw]) -> Raw:
    def read(_: bytes) -> Raw:
        echoes = [_tool(raw, f"tools[{index}]") for index, raw in enumerate(tools)]
        return Raw(msgspec.json.encode(echoes))

    return memo.get(b",".join(tools), read)


def _tool(raw: Raw, field_path: str) -> Raw | dict[str, Raw]:
    """A function with all the members that Open Responses requires; any other tool as it came."""
    raw = one_line(raw)
    tool = convert(dict[str, Raw], raw, field_path)
    if bytes(tool.get("type", b"")) != b'"function"' or _TOOL_DEFAULTS.keys() <= tool.keys():
        return raw
    return tool | {key: value for key, value in _TOOL_DEFAULTS.items() if key not in tool}
