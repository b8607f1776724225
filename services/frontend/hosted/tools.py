"""Describes the tools that the frontend runs for the client (web search and fetch) and their
results to the model.

A new result and one that a client sends back are rendered as the same text, so that prompts keep
their prefix.
"""

import base64
import binascii
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import msgspec

from schemas.conversation import Call, HostedTool, Message, Result, Text, ToolSpec
from schemas.events import HostedResult

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
        return Result(
            result.call_id, [Text(f"Error: {result.error}")], is_error=True, name=result.name
        )
    pages = []
    for number, source in enumerate(result.sources, 1):
        url = f"{source.url} ({source.age})" if source.age else source.url
        pages.append(
            "\n".join(line for line in (f"[{number}] {source.title}", url, source.text) if line)
        )
    return Result(result.call_id, [Text("\n\n".join(pages) or "No results.")], name=result.name)


def add_results(
    messages: Sequence[Message], results: Iterable[Result], ends: Iterable[int] | None = None
) -> list[Message]:
    """Returns the messages with further results: after the last message with their calls, in the
    order of the calls.

    `ends`: for each result, the number of messages that came before it; None: all.
    """
    places: dict[str, list[int]] = {}
    for at, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, Call):
                places.setdefault(part.call_id, []).append(at)
    added: dict[int, tuple[int, list[Result]]] = {}
    for result, end in zip(results, repeat(len(messages)) if ends is None else ends, strict=False):
        found = places.get(result.call_id, [])
        if before := bisect_left(found, end):
            added.setdefault(found[before - 1], (end, []))[1].append(result)
    out: list[Message] = []
    answered: Message | None = None
    for at, message in enumerate(messages):
        if message is not answered:
            out.append(message)
        if at not in added:
            continue
        end, answers = added[at]
        if at + 1 < end and messages[at + 1].role == "tool":
            answered = messages[at + 1]
            answers = [*(part for part in answered.parts if isinstance(part, Result)), *answers]
        calls = [part.call_id for part in message.parts if isinstance(part, Call)]
        order = {call_id: index for index, call_id in enumerate(calls)}
        answers.sort(key=lambda answer: order.get(answer.call_id, len(order)))
        out.append(Message("tool", [*answers]))
    return out


def missing_tools(kinds: Iterable[str]) -> list[Text]:
    """Returns the instruction that makes the model report that it lacks these tools; empty if there
    are none."""
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
