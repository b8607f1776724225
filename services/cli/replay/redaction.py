"""Masks the texts of a recorded turn: letters become x, digits 0. Pure.

Lengths, line breaks, markup, order and timing stay, so that the turn plays like the original. Names of tools, keys of
schemas and arguments, and numbers in arguments stay too; seals and token ids, which contain the texts, are dropped.
"""

import re
from collections import defaultdict
from typing import Any

import msgspec

from schemas.events import TurnEvent
from services.cli.replay.answer import story_of

_TEXT_KEYS = frozenset({"text", "arguments", "description", "title", "url", "definition", "summary", "verbosity"})
_VALUE_KEYS = ("enum", "const", "default", "examples")
"""In schemas: every string under them is a text."""
SEAL = "cmVkYWN0ZWQ"
_STRING = re.compile(r'("(?:[^"\\]|\\.)*"?)(\s*:)?', re.DOTALL)
_CHARACTER = re.compile(r"(\\u)[0-9a-fA-F]{4}|(\\.)|[^\W_]", re.DOTALL)


def redact(lines: list[Any]) -> list[Any]:
    """The lines of a recorded turn, masked."""
    texts: defaultdict[int, str] = defaultdict(str)
    calls = set()
    for event in (event for line in lines for event in line.get("events", ())):
        if event["type"] == "block_start" and event["kind"] == "tool_use":
            calls.add(event["block"])
        elif event["type"] == "delta":
            texts[event["block"]] += event["text"]
    left = {block: mask_json(text) if block in calls else mask(text) for block, text in texts.items()}

    def redact_event(event: dict[str, Any]) -> dict[str, Any]:
        if event["type"] == "delta":
            block, size = event["block"], len(event["text"])
            event = {**event, "text": left[block][:size]}
            left[block] = left[block][size:]
            event.pop("logprobs", None)
        elif event["type"] == "block_stop" and event.get("seal"):
            event = {**event, "seal": SEAL}
        elif event["type"] == "finish" and event.get("stop_string"):
            event = {**event, "stop_string": mask(event["stop_string"])}
        return event

    events: list[Any] = []

    def redact_line(line: dict[str, Any]) -> dict[str, Any]:
        if "events" in line:
            redacted = [redact_event(event) for event in line["events"]]
            events.extend(redacted)
            return {**line, "events": redacted}
        if "expect" in line:
            return {**line, "expect": story_of(msgspec.convert(events, list[TurnEvent]))}
        if "context" in line:
            context = {**line["context"], "prefix": mask(line["context"].get("prefix", "")), "stop": []}
            return {**line, "context": {**context, "tools": _walk(context.get("tools", []))}}
        return {**line, "conversation": _conversation(line["conversation"])} if "conversation" in line else line

    return [redact_line(line) for line in lines if "tokens" not in line]


def mask(text: str) -> str:
    """Letters as x, digits as 0."""
    return "".join("x" if c.isalpha() else "0" if c.isdigit() else c for c in text)


def mask_json(text: str) -> str:
    """JSON, perhaps cut off, with its strings masked, but not its keys. The length stays."""

    def string(found: re.Match[str]) -> str:
        return found[0] if found[2] else _CHARACTER.sub(character, found[0])

    def character(found: re.Match[str]) -> str:
        return r"\u0078" if found[1] else found[2] or mask(found[0])

    return _STRING.sub(string, text)


def _conversation(conversation: dict[str, Any]) -> dict[str, Any]:
    """Without names of users, stop strings and template variables, which no player needs."""
    kept = {key: value for key, value in conversation.items() if key != "template_kwargs"}
    kept["turns"] = [{key: value for key, value in turn.items() if key != "name"} for turn in conversation["turns"]]
    kept["sampling"] = {key: value for key, value in conversation.get("sampling", {}).items() if key != "stop"}
    walked: dict[str, Any] = _walk(kept)
    return walked


def _walk(value: Any, key: str = "", *, everything: bool = False) -> Any:
    """`value` with the strings under keys of texts masked, or every string."""
    if isinstance(value, list):
        return [_walk(item, key, everything=everything) for item in value]
    if isinstance(value, dict):
        return {k: _walk(item, k, everything=everything or k in _VALUE_KEYS) for k, item in value.items()}
    if not isinstance(value, str):
        return value
    if key == "arguments" and not everything:
        return mask_json(value)
    if key == "seal" and value and not everything:
        return SEAL
    return mask(value) if everything or key in _TEXT_KEYS else value
