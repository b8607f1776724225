"""Replaces what is random or depends on time in answers by stable names. Pure.

Answers stay text: what is left is compared byte for byte. Ids get numbers in the order of their
first appearance, so that two places with the same id still have the same name.
"""

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = Any

_SEAL = re.compile(r"(?<![\w/+-])A[g-v][\w-]{50,}={0,2}(?![\w/+-])")
"""Version 2, a nonce and a box, in base64."""
_ID = re.compile(
    r"(?<![0-9a-zA-Z])(?P<hex>[0-9a-f]{24})(?=(?:[0-9a-f]{24})?(?:\d{3}|[ci]\d+)?(?![0-9a-zA-Z]))"
    r"|(?<=toolu_)[0-9A-Za-z]{24}(?![0-9A-Za-z])"
    r"|(?<=call_)[0-9A-Za-z]{24}(?![0-9A-Za-z])"
    r"|(?<=msg_|rs__|sco_)[0-9a-f]{48}(?![0-9A-Za-z])"
)
_TIMES = re.compile(
    r'"(created|created_at|completed_at|expires_at|failed_at|incomplete_at|cancelled_at|fetched_at|added_at)":'
    r"(\d{9,10})(\.\d+)?(?=[,}])"
)
_ISO = re.compile(r'"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"')
_INPUT = re.compile(
    r'"input_tokens":(\d+)(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)(\d+)'
)
"""How much of a prompt is cached may differ a little, its length not."""
_SEQUENCE = re.compile(r'"sequence_number":(\d+)')
_JOINED_TEXTS = (
    *("text", "thinking", "partial_json", "content", "reasoning_content", "reasoning"),
    *("arguments", "delta", "input"),
)
_IGNORED_HEADERS = frozenset({"date", "content-length", "connection", "keep-alive"})


@dataclass
class Renamer:
    """Names ids in the order of their appearance."""

    names: dict[str, str] = field(default_factory=dict)

    def name(self, kind: str, value: str) -> str:
        return self.names.setdefault(value, f"{kind}#{len(self.names) + 1}")

    def text(self, text: str) -> str:
        """The text with ids, sealed texts and times replaced."""
        text = _SEAL.sub("<sealed>", text)
        text = _ID.sub(lambda found: self.name("", found[0]), text)
        text = _TIMES.sub(
            lambda found: f'"{found[1]}":"<time{" float" if found[3] else ""}>"', text
        )
        text = _INPUT.sub(
            lambda found: f'"input_tokens":{int(found[1]) + int(found[3])}{found[2]}{found[3]}',
            text,
        )
        return _ISO.sub('"<time>"', text)


@dataclass(frozen=True)
class Event:
    """One SSE event: its lines before `data`, and its data."""

    head: str
    data: str

    @property
    def name(self) -> str:
        """The event's type, for paths."""
        if self.head:
            return self.head.removeprefix("event: ").strip()
        return "chunk" if self.data.startswith("{") else self.data[:20]


def stream_events(body: str, names: Renamer) -> list[Event]:
    """The events of a stream, adjacent deltas of a block merged, those of several choices ordered
    by choice."""
    return [Event(event.head, names.text(event.data)) for event in _merged(body)]


def _merged(body: str) -> list[Event]:
    events = [_event(frame) for frame in body.split("\n\n") if frame]
    numbers = (n for n in range(len(events)))
    events = [Event(e.head, _renumbered(e.data, numbers)) for e in events]
    merged: list[Event] = []
    last: tuple[str, Json] | None = None
    for event in sorted(_laned(events), key=lambda item: item[0]):
        delta = _delta(event[1])
        if delta is None:
            merged.append(event[1])
            last = None
        elif last is not None and last[0] == event[1].head + _template(delta):
            _join(last[1], delta)
            merged[-1] = Event(event[1].head, msgspec.json.encode(last[1]).decode())
        else:
            last = event[1].head + _template(delta), delta
            merged.append(event[1])
    return merged


def _event(frame: str) -> Event:
    head, found, data = (
        frame.rpartition("data: ") if frame.startswith("data: ") else frame.partition("\ndata: ")
    )
    return Event(head, data) if found else Event(frame, "")


def _renumbered(data: str, numbers: Any) -> str:
    """A contiguous sequence of numbers depends on how deltas were cut; what breaks it stays
    visible."""
    found = _SEQUENCE.search(data)
    if found is None or int(found[1]) != next(numbers):
        return data
    return f'{data[: found.start()]}"sequence_number":0{data[found.end() :]}'


def _laned(events: list[Event]) -> list[tuple[tuple[int, int, bool], Event]]:
    """Events with a key that sorts them: chunks of different choices come in any order, and a
    choice's token ids, which have chunks of their own, in any number of them between the others."""
    run, keyed = 0, []
    for event in events:
        choice = re.search(r'"choices":\[\{"index":(\d+)', event.data)
        run += choice is None
        keyed.append(
            ((run, int(choice[1]) if choice else -1, ',"token_ids":[' not in event.data), event)
        )
        run += choice is None
    return keyed


def _delta(event: Event) -> Json | None:
    """The data of an event that is one of several deltas of a block, if it is written as JSON
    is."""
    if not ("_delta" in event.head or ".delta" in event.head or '"choices":[{' in event.data):
        return None
    try:
        tree = msgspec.json.decode(event.data)
    except msgspec.DecodeError:
        return None
    if "signature_delta" in event.data or msgspec.json.encode(tree).decode() != event.data:
        return None
    if any(choice.get("finish_reason") for choice in tree.get("choices") or ()):
        return None
    return tree


def _template(tree: Json) -> str:
    blank: Json = msgspec.json.decode(msgspec.json.encode(tree))
    _walk(blank, lambda node, key, _: node.__setitem__(key, None), False)
    return msgspec.json.encode(blank).decode()


def _join(into: Json, more: Json) -> None:
    found: list[Json] = []
    _walk(more, lambda node, key, _: found.append(node[key]), False)
    values = iter(found)

    def put(node: Json, key: str, kind: str) -> None:
        value = next(values)
        node[key] = value if kind == "last" else node[key] + value

    _walk(into, put, False)


def _walk(node: Json, visit: Any, logprobs: bool) -> None:
    """Visits what is joined: texts, lists of tokens; of a count so far, the last one."""
    items = (
        list(node.items())
        if isinstance(node, dict)
        else list(enumerate(node))
        if isinstance(node, list)
        else []
    )
    for key, value in items:
        if key == "usage" and value:
            visit(node, key, "last")
        elif isinstance(value, str) and key in _JOINED_TEXTS:
            visit(node, key, "text")
        elif isinstance(value, list) and (logprobs or key in ("token_ids", "logprobs")):
            visit(node, key, "list")
        else:
            _walk(value, visit, logprobs or key == "logprobs")


def headers(found: list[tuple[str, str]], names: Renamer) -> dict[str, str]:
    """The headers that are compared."""
    return {
        name.lower(): names.text(value)
        for name, value in found
        if name.lower() not in _IGNORED_HEADERS
    }
