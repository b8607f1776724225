"""A recorded turn without its words: every letter and digit of a text becomes x or 0, everything else stays. Pure.

What is left shows lengths, line breaks, markup, order and timing, and plays like the original. Names of tools, keys of
schemas and arguments, and numbers in arguments are kept; seals and token ids, which hold the words, are not.
"""

from typing import Any

import msgspec

from schemas.events import TurnEvent
from services.cli.replay.answer import story_of

_TEXT_KEYS = frozenset({"text", "arguments", "description", "title", "url", "definition", "summary", "verbosity"})
SEAL = "cmVkYWN0ZWQ"


class Redaction:
    """One turn's."""

    def __init__(self) -> None:
        self._json: dict[int, JsonText] = {}
        self._kinds: dict[int, str] = {}
        self._events: list[TurnEvent] = []

    def turn(self, lines: list[Any]) -> list[Any]:
        """The lines of a recorded turn."""
        return [done for line in lines if (done := self._line(line))]

    def _line(self, line: dict[str, Any]) -> dict[str, Any] | None:
        if "tokens" in line:
            return None
        if "events" in line:
            events = [self._event(event) for event in line["events"]]
            self._events += msgspec.convert(events, list[TurnEvent])
            return {**line, "events": events}
        if "expect" in line:
            return {**line, "expect": story_of(self._events)}
        if "context" in line:
            context = {**line["context"], "prefix": masked(line["context"].get("prefix", "")), "stop": []}
            return {**line, "context": {**context, "tools": _walk(context.get("tools", []))}}
        if "conversation" in line:
            return {**line, "conversation": _conversation(line["conversation"])}
        return line

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        match event["type"]:
            case "block_start":
                self._kinds[event["block"]] = event["kind"]
                return event
            case "delta":
                return {**{k: v for k, v in event.items() if k != "logprobs"}, "text": self._delta(event)}
            case "block_stop" if event.get("seal"):
                return {**event, "seal": SEAL}
            case "finish" if event.get("stop_string"):
                return {**event, "stop_string": masked(event["stop_string"])}
        return event

    def _delta(self, event: dict[str, Any]) -> str:
        block, text = event["block"], event["text"]
        if self._kinds.get(block) != "tool_use":
            return masked(text)
        return self._json.setdefault(block, JsonText()).mask(text)


def masked(text: str) -> str:
    """Letters as x, digits as 0."""
    return "".join("x" if c.isalpha() else "0" if c.isdigit() else c for c in text)


class JsonText:
    """JSON in pieces: strings that are values are masked, keys and numbers stay, and so does the form."""

    def __init__(self) -> None:
        self._above: list[str] = []
        self._inside = False
        self._key = False
        self._escape = ""
        """What an escape sequence still has to come: `?` its kind, else what to write for its digits."""

    def mask(self, text: str) -> str:
        """The next piece."""
        return "".join(map(self._next, text))

    def _next(self, character: str) -> str:
        if not self._inside:
            self._outside(character)
            return character
        if self._key:
            self._inside = bool(self._escape) or character != '"'
            self._escape = "?" if character == "\\" and not self._escape else ""
            return character
        if self._escape == "?":
            self._escape = "0078" if character == "u" else ""
            return character
        if self._escape:
            digit, self._escape = self._escape[0], self._escape[1:]
            return digit
        if character == "\\":
            self._escape = "?"
        elif character == '"':
            self._inside = False
        else:
            return masked(character)
        return character

    def _outside(self, character: str) -> None:
        above = self._above
        if character == '"':
            self._inside = True
        elif character in "{[":
            above.append(character)
            self._key = character == "{"
        elif character in "}]" and above:
            above.pop()
        elif character == ",":
            self._key = above[-1:] == ["{"]
        elif character == ":":
            self._key = False


def _conversation(given: dict[str, Any]) -> dict[str, Any]:
    """Masked, and without what is free text and decides nothing here: names of users, stop strings, variables."""
    kept = {key: value for key, value in given.items() if key != "template_kwargs"}
    kept["turns"] = [{key: value for key, value in turn.items() if key != "name"} for turn in given["turns"]]
    kept["sampling"] = {key: value for key, value in given.get("sampling", {}).items() if key != "stop"}
    done: dict[str, Any] = _walk(kept)
    return done


def _walk(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _field(name, held) for name, held in value.items()}
    if isinstance(value, list):
        return [_walk(one, key) for one in value]
    return masked(value) if isinstance(value, str) and key in _TEXT_KEYS else value


def _field(name: str, held: Any) -> Any:
    if name == "arguments" and isinstance(held, str):
        return JsonText().mask(held)
    if name == "seal" and held:
        return SEAL
    if name in ("enum", "const", "default", "examples"):
        return _walk_all(held)
    return _walk(held, name)


def _walk_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _walk_all(held) for name, held in value.items()}
    if isinstance(value, list):
        return [_walk_all(one) for one in value]
    return masked(value) if isinstance(value, str) else value
