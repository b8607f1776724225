"""Describes the tools that the frontend runs for the client (web search and fetch) and their results to the model.

A new result and one that a client sends back are rendered as the same text, so that prompts keep their prefix.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from schemas.conversation import Call, HostedTool, Message, Result, Text, ToolSpec
from schemas.events import HostedResult

_PACKED = "turnwire.1."
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_NAMED = 16
_FUNCTIONS: dict[str, tuple[str, str, str]] = {
    "web_search": ("Searches the web. Returns pages with title, URL and text.", "query", "What to search for."),
    "web_fetch": (
        "Reads a web page. Its URL must have occurred in the conversation.",
        "url",
        "The complete URL of the page.",
    ),
}
"""For each kind: description, name of the one argument, description of the argument."""


def hosted_spec(hosted: HostedTool, name: str = "") -> ToolSpec:
    """Returns the function that the model sees for a hosted tool."""
    description, argument, about = _FUNCTIONS[hosted.kind]
    properties: dict[str, Any] = {argument: {"type": "string", "description": about}}
    schema = {"type": "object", "properties": properties, "required": [argument]}
    return ToolSpec(name or hosted.kind, description=description, schema=schema, hosted=hosted)


def hosted_argument(kind: str, arguments: str) -> str:
    """Returns the query or URL of a call; "" if the arguments are invalid."""
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any]).get(_FUNCTIONS[kind][1])
    except (msgspec.DecodeError, RecursionError):
        return ""
    return value.strip() if isinstance(value, str) else ""


def result_part(result: HostedResult) -> Result:
    """Returns a result as the model reads it."""
    if result.error is not None:
        return Result(result.call_id, [Text(f"Error: {result.error}")], is_error=True, name=result.name)
    pages = []
    for number, source in enumerate(result.sources, 1):
        url = f"{source.url} ({source.age})" if source.age else source.url
        pages.append("\n".join(line for line in (f"[{number}] {source.title}", url, source.text) if line))
    return Result(result.call_id, [Text("\n\n".join(pages) or "No results.")], name=result.name)


def add_results(messages: Sequence[Message], results: Iterable[Result]) -> list[Message]:
    """Returns the messages with further results: after the message with their calls, in the order of the calls."""
    out = [*messages]
    for result in results:
        for at in range(len(out) - 1, -1, -1):
            calls = [part.call_id for part in out[at].parts if isinstance(part, Call)]
            if result.call_id not in calls:
                continue
            earlier = out[at + 1].parts if at + 1 < len(out) and out[at + 1].role == "tool" else []
            answers = [*(part for part in earlier if isinstance(part, Result)), result]
            order = {call_id: index for index, call_id in enumerate(calls)}
            answers.sort(key=lambda answer: order.get(answer.call_id, len(order)))
            out[at + 1 : at + 1 + bool(earlier)] = [Message("tool", [*answers])]
            break
    return out


def missing_tools(kinds: Iterable[str]) -> list[Text]:
    """Returns the instruction that makes the model report that it lacks these tools; empty if there are none."""
    names = ", ".join(dict.fromkeys(_UNSAFE.sub("", kind)[:64] for kind in [*kinds][:_MAX_NAMED]))
    if not names:
        return []
    return [
        Text(
            f"Tools that were requested but are not available on this server: {names}. Where the user's request needs "
            "one of them, answer that it is not available; do not make up its results."
        )
    ]


def pack(data: bytes) -> str:
    """Returns data as opaque text, which clients send back. It is neither secret nor authenticated."""
    return _PACKED + base64.urlsafe_b64encode(data).decode()


def unpack(text: str | None) -> bytes | None:
    """Reverses `pack`. Returns None for text of another origin."""
    if text is None or not text.startswith(_PACKED):
        return None
    try:
        return base64.urlsafe_b64decode(text.removeprefix(_PACKED))
    except (binascii.Error, ValueError):
        return None
