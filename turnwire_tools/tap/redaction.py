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
    events = []
    for line in lines:
        events += line.get("events", ())
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
    masked: dict[int, StringIO] = {}
    for block, text in texts.items():
        masked[block] = StringIO(mask_json(text) if block in calls else mask(text))

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
    return "".join(map(_masked, text))


def _masked(character: str) -> str:
    if character.isalpha():
        return "x"
    return "0" if character.isdigit() else character


def mask_json(text: str) -> str:
    """Masks the strings of JSON that may be cut off, but not its keys. The length stays."""

    return _STRING.sub(_masked_string, text)


def _masked_string(string: re.Match[str]) -> str:
    is_key = string[2] is not None
    if is_key:
        return string[0]
    return _CHARACTER.sub(_masked_character, string[0])


def _masked_character(character: re.Match[str]) -> str:
    """A character of a JSON string. Of escapes only those with a code stand for letters."""
    if character[1]:
        return r"\u0078"
    return character[2] or mask(character[0])


def _conversation(conversation: dict[str, Any]) -> dict[str, Any]:
    """Masks a conversation; leaves out users' names, stop strings and template variables, which no
    player needs."""
    kept = _without(conversation, "template_kwargs")
    kept["messages"] = [_without(message, "name") for message in conversation["messages"]]
    kept["sampling"] = _without(conversation.get("sampling", {}), "stop")
    walked: dict[str, Any] = _walk(kept)
    return walked


def _without(members: dict[str, Any], left_out: str) -> dict[str, Any]:
    return {key: value for key, value in members.items() if key != left_out}


def _walk(value: Any, key: str = "", *, everything: bool = False) -> Any:
    """Masks the strings under keys of texts, or every string."""
    if isinstance(value, list):
        return [_walk(item, key, everything=everything) for item in value]
    if isinstance(value, dict):
        return {
            name: _walk(item, name, everything=everything or name in _VALUE_KEYS)
            for name, item in value.items()
        }
    if not isinstance(value, str):
        return value
    if everything:
        return mask(value)
    return _masked_member(key, value)


def _masked_member(key: str, text: str) -> str:
    if key == "arguments":
        return mask_json(text)
    if key == "seal" and text:
        return SEAL
    return mask(text) if key in _TEXT_KEYS else text
