"""Describes the tools that the frontend runs for the client (web search and fetch, the search of
tools) and their results to the model.

A new result and one that a client sends back are rendered as the same text, so that prompts keep
their prefix.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from schemas.conversation import (
    HostedTool,
    Result,
    ResultPart,
    Text,
    ToolReference,
    ToolSpec,
)
from schemas.events import HostedResult, WebSource

_PACKED = "turnwire.1."
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_NAMED = 16
_FUNCTIONS: dict[str, tuple[str, str, str]] = {
    "web_search": (
        "Searches the web. Returns pages with title, URL and text.",
        "query",
        "What to search for.",
    ),
    "web_fetch": (
        "Reads a web page. Its URL must have occurred in the conversation.",
        "url",
        "The complete URL of the page.",
    ),
    "tool_search_regex": (
        "Searches for tools that are not listed yet. Those that it finds can be called afterwards.",
        "pattern",
        "Regular expression, as for Python's re.search, for names, descriptions and arguments.",
    ),
    "tool_search_bm25": (
        "Searches for tools that are not listed yet. Those that it finds can be called afterwards.",
        "query",
        "Words that describe what the tools should do.",
    ),
}
"""For each kind: description, name of the one argument, description of the argument."""
_MAX_SEARCH_CHARS = {"tool_search_regex": 200, "tool_search_bm25": 500}
"""The longest pattern and query, as Anthropic's."""
TOO_MANY: Final = "too_many_requests"
"""The error code of a search after the last one that an answer may have."""


def hosted_spec(hosted: HostedTool, name: str = "") -> ToolSpec:
    """Returns the function that the model sees for a hosted tool."""
    description, argument, about = _FUNCTIONS[hosted.kind]
    properties: dict[str, Any] = {argument: {"type": "string", "description": about}}
    schema = {"type": "object", "properties": properties, "required": [argument]}
    return ToolSpec(name or hosted.kind, description=description, schema=schema, hosted=hosted)


def hosted_argument(kind: str, arguments: str) -> str:
    """Returns the query, pattern or URL of a call; "" if the arguments are invalid."""
    _, argument, _ = _FUNCTIONS[kind]
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any]).get(argument)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return value.strip() if isinstance(value, str) else ""


def refused_search(kind: str, argument: str) -> str | None:
    """Returns the error code of a search of tools that may not run; None if it may."""
    if 0 < len(argument) <= _MAX_SEARCH_CHARS[kind]:
        return None
    return "invalid_tool_input"


def found_tools(names: Iterable[str]) -> list[ResultPart]:
    """Returns the tools that a search found, by their names as the model sees them, for a
    result."""
    parts: list[ResultPart] = [ToolReference(name) for name in names]
    return parts or [Text("No tools were found.")]


def result_part(result: HostedResult) -> Result:
    """Returns a result as the model reads it."""
    if result.error is not None:
        text = f"Error: {result.error}"
        return Result(result.call_id, [Text(text)], is_error=True, name=result.name)
    if result.is_of_tool_search:
        return Result(result.call_id, found_tools(result.tools), name=result.name)
    pages = [_page(number, source) for number, source in enumerate(result.sources, 1)]
    text = "\n\n".join(pages) or "No results."
    return Result(result.call_id, [Text(text)], name=result.name)


def _page(number: int, source: WebSource) -> str:
    url = source.url
    if source.age:
        url += f" ({source.age})"
    lines = (f"[{number}] {source.title}", url, source.text)
    return "\n".join(line for line in lines if line)


def missing_tools(kinds: Iterable[str]) -> list[Text]:
    """Returns the instruction that makes the model report that it lacks these tools; empty if there
    are none."""
    first_kinds = islice(kinds, _MAX_NAMED)
    names = ", ".join(dict.fromkeys(_UNSAFE.sub("", kind)[:64] for kind in first_kinds))
    if not names:
        return []
    return [
        Text(
            f"Tools that were requested but are not available on this server: {names}. Where the "
            "user's request needs one of them, answer that it is not available; do not make up its "
            "results."
        )
    ]


def pack(data: bytes) -> str:
    """Returns data as opaque text, which clients send back: neither secret nor authenticated."""
    return _PACKED + base64.urlsafe_b64encode(data).decode()


def unpack(text: str | None) -> bytes | None:
    """Reverses `pack`. Returns None for text of another origin."""
    if text is None or not text.startswith(_PACKED):
        return None
    try:
        return base64.urlsafe_b64decode(text.removeprefix(_PACKED))
    except (binascii.Error, ValueError):
        return None
