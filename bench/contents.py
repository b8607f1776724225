"""Brings streams into a form that does not depend on the load of the server, for comparison. Pure.

How a text is cut into deltas depends on load, and nothing else may. So deltas that follow each
other in one place are joined, and every other event is kept whole and in its order. What must
differ between two answers is replaced: ids, by which one it is in the answer; times; how much of
the prompt was in the engine's cache; and sealed reasoning, which contains the turn's id in
compressed form.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]
"""The event's data, with its name as `event`; data other than JSON is `data`."""

_IDS = re.compile(
    r"\b(msg|req|resp|rs|fc|fco|ctc|ct|call|toolu|chatcmpl|srvtoolu)[_-][A-Za-z0-9_-]{6,}"
)
_TIMES = frozenset({"created", "created_at", "completed_at"})
_SEALS = frozenset({"signature", "encrypted_content"})
_UNIQUE = frozenset({"sequence_number", "obfuscation", "service_tier"})


class NotAStream(Exception):
    """The bytes are not an event stream of this API. The text describes the error."""


def canonical(api: str, stream: bytes) -> list[Event]:
    """Returns the answer's events without what load may change. Raises NotAStream."""
    events = read_events(stream)
    if api == "responses":
        check_sequence(events)
    names = Names()
    return [names.rename(event) for event in join(events, _PLACES[api])]


def difference(slow: Sequence[Event], busy: Sequence[Event]) -> str | None:
    """Returns the first difference of two answers, in words; None if they are equal."""
    for number, (one, other) in enumerate(zip(slow, busy, strict=False)):
        if one != other:
            return (
                f"event {number}: {_shown(one, other)} where the slow run has {_shown(other, one)}"
            )
    if len(slow) != len(busy):
        return f"{len(busy)} events where the slow run has {len(slow)}"
    return None


def read_events(stream: bytes) -> list[Event]:
    """Returns all events of a stream. Raises NotAStream."""
    found: list[Event] = []
    for block in stream.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line for line in block.split(b"\n") if line and not line.startswith(b":")]
        if not lines:
            continue
        fields = dict(line.split(b": ", 1) for line in lines if b": " in line)
        data = fields.get(b"data", b"").decode()
        event: Event = {"event": fields[b"event"].decode()} if b"event" in fields else {}
        try:
            told = json.loads(data)
        except ValueError:
            told = data
        found.append({**event, **told} if isinstance(told, dict) else {**event, "data": told})
    if not found:
        raise NotAStream("no events")
    return [event for event in found if event.get("type") != "ping"]


def check_sequence(events: Sequence[Event]) -> None:
    """Checks that Responses numbers its events from 0, without a gap. Raises NotAStream."""
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    if numbers != list(range(len(numbers))):
        raise NotAStream(
            f"sequence numbers {numbers[:3]} … {numbers[-3:]} for {len(numbers)} events"
        )


def join(events: Sequence[Event], place: "Callable[[Event], Place | None]") -> list[Event]:
    """Joins deltas that follow each other in one place."""
    joined: list[Event] = []
    last: Place | None = None
    for event in events:
        here = place(event)
        if here is not None and last is not None and here.key == last.key:
            last.add(here.text)
            continue
        last = here
        joined.append(event)
    return joined


class Place:
    """The place that a delta belongs to, and its text."""

    def __init__(self, key: tuple[object, ...], holder: dict[str, Any], field: str) -> None:
        self.key = (*key, field)
        self._holder = holder
        self._field = field

    @property
    def text(self) -> str:
        return str(self._holder[self._field])

    def add(self, more: str) -> None:
        """Appends to the first delta of this place."""
        self._holder[self._field] += more


def _messages(event: Event) -> Place | None:
    delta = event.get("delta", {})
    for field in ("text", "thinking", "partial_json"):
        if event.get("type") == "content_block_delta" and field in delta:
            return Place((event["index"], delta["type"]), delta, field)
    return None


def _chat(event: Event) -> Place | None:
    choices = event.get("choices") or []
    if len(choices) != 1 or choices[0].get("finish_reason") or event.get("usage"):
        return None
    delta = choices[0].get("delta", {})
    said = {name for name, value in delta.items() if value not in (None, "")}
    if (
        said == {"tool_calls"}
        and len(delta["tool_calls"]) == 1
        and "id" not in delta["tool_calls"][0]
    ):
        call = delta["tool_calls"][0]
        return Place((call["index"],), call["function"], "arguments")
    if len(said) == 1 and isinstance(delta[next(iter(said))], str) and "role" not in said:
        return Place((tuple(sorted(delta)),), delta, next(iter(said)))
    return None


def _responses(event: Event) -> Place | None:
    if not str(event.get("type", "")).endswith(".delta"):
        return None
    where = ("type", "item_id", "output_index", "content_index", "summary_index")
    return Place(tuple(event.get(name) for name in where), event, "delta")


_PLACES: dict[str, Callable[[Event], Place | None]] = {
    "messages": _messages,
    "chat": _chat,
    "responses": _responses,
}


class Names:
    """The names that replace ids, times and seals in one answer."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def rename(self, value: Any, key: str = "") -> Any:
        """Returns `value` without what must differ between two answers. Equal ids get equal
        names."""
        if isinstance(value, dict):
            return {
                name: self.rename(inner, name)
                for name, inner in _whole(value).items()
                if name not in _UNIQUE
            }
        if isinstance(value, list):
            return [self.rename(inner) for inner in value]
        if key in _TIMES and isinstance(value, int | float):
            return 0
        if key in _SEALS and isinstance(value, str):
            return "sealed" if value else ""
        return _IDS.sub(self._name, value) if isinstance(value, str) else value

    def _name(self, found: re.Match[str]) -> str:
        return self._known.setdefault(found[0], f"{found[1]}_{len(self._known)}")


def _whole(value: dict[str, Any]) -> dict[str, Any]:
    """Returns token counts that do not depend on the engine's cache."""
    if "cache_read_input_tokens" in value:
        cached = value["cache_read_input_tokens"] or 0
        return value | {
            "input_tokens": value["input_tokens"] + cached,
            "cache_read_input_tokens": 0,
        }
    return value | {"cached_tokens": 0} if "cached_tokens" in value else value


def _shown(event: Event, other: Event) -> str:
    differing = {name: value for name, value in event.items() if other.get(name) != value}
    return json.dumps(differing or event, ensure_ascii=False)[:300]
