"""Masks the texts of a recorded turn: letters become x, digits 0. Pure.

Lengths, line breaks, markup, order and timing stay, so that the turn plays like the original. Names
of tools, keys of schemas and arguments, and numbers in arguments stay too; seals and token ids,
which contain the texts, are dropped.
"""

import re
from collections import defaultdict
from io import StringIO
from typing import Any

import msgspec

from schemas.events import TurnEvent
from turnwire_tools.clients.answer import story_of

_TEXT_KEYS = frozenset(
    {"text", "arguments", "description", "title", "url", "definition", "summary", "verbosity"}
)
_VALUE_KEYS = ("enum", "const", "default", "examples")
"""In schemas: every string under them is a text."""
SEAL = "cmVkYWN0ZWQ"
_STRING = re.compile(r'("(?:[^"\\]|\\.)*"?)(\s*:)?', re.DOTALL)
_CHARACTER = re.compile(r"(\\u)[0-9a-fA-F]{4}|(\\.)|[^\W_]", re.DOTALL)


def redact(lines: list[Any]) -> list[Any]:
    """Masks the lines of a recorded turn in place; returns those that stay."""
    events = [event for line in lines for event in line.get("events", ())]
    _redact_events(events)
    kept = [line for line in lines if "tokens" not in line]
    for line in kept:
        if "prompt" in line:
            line["prompt"].pop("ids", None)
        if "conversation" in line:
            line["conversation"] = _conversation(line["conversation"])
        if "context" in line:
            context = line["context"]
            context |= {
                "prefix": mask(context.get("prefix", "")),
                "stop": [],
                "tools": _walk(context.get("tools", [])),
            }
        if "expect" in line:
            line["expect"] = story_of(msgspec.convert(events, list[TurnEvent]))
    return kept


def _redact_events(events: list[Any]) -> None:
    texts: defaultdict[int, str] = defaultdict(str)
    for event in events:
        if event["type"] == "delta":
            texts[event["block"]] += event["text"]
    calls = {event["block"] for event in events if event.get("kind") == "tool_use"}
    masked = {
        block: StringIO((mask_json if block in calls else mask)(text))
        for block, text in texts.items()
    }
    for event in events:
        if event["type"] == "delta":
            event["text"] = masked[event["block"]].read(len(event["text"]))
            event.pop("logprobs", None)
        if event.get("seal"):
            event["seal"] = SEAL
        if event.get("stop_string"):
            event["stop_string"] = mask(event["stop_string"])


def mask(text: str) -> str:
    """Replaces letters by x and digits by 0."""
    return "".join("x" if c.isalpha() else "0" if c.isdigit() else c for c in text)


def mask_json(text: str) -> str:
    """Masks the strings of JSON that may be cut off, but not its keys. The length stays."""

    def string(found: re.Match[str]) -> str:
        return found[0] if found[2] else _CHARACTER.sub(character, found[0])

    def character(found: re.Match[str]) -> str:
        return r"\u0078" if found[1] else found[2] or mask(found[0])

    return _STRING.sub(string, text)


def _conversation(conversation: dict[str, Any]) -> dict[str, Any]:
    """Masks a conversation; leaves out users' names, stop strings and template variables, which no
    player needs."""
    kept = {key: value for key, value in conversation.items() if key != "template_kwargs"}
    kept["messages"] = [
        {key: value for key, value in message.items() if key != "name"}
        for message in conversation["messages"]
    ]
    kept["sampling"] = {
        key: value for key, value in conversation.get("sampling", {}).items() if key != "stop"
    }
    walked: dict[str, Any] = _walk(kept)
    return walked


def _walk(value: Any, key: str = "", *, everything: bool = False) -> Any:
    """Masks the strings under keys of texts, or every string."""
    if isinstance(value, list):
        return [_walk(item, key, everything=everything) for item in value]
    if isinstance(value, dict):
        return {
            k: _walk(item, k, everything=everything or k in _VALUE_KEYS)
            for k, item in value.items()
        }
    if not isinstance(value, str):
        return value
    if key == "arguments" and not everything:
        return mask_json(value)
    if key == "seal" and value and not everything:
        return SEAL
    return mask(value) if everything or key in _TEXT_KEYS else value
