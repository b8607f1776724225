"""Replaces what is random or depends on time in answers by stable names.

Answers stay text: what is left is compared byte for byte. Ids get numbers in the order of their
first appearance, so that two places with the same id still have the same name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

Leaves: TypeAlias = dict[tuple[str | int, ...], Any]
"""The values of a document by their paths."""

_SEAL = re.compile(r"(?<![\w/+-])A[g-v][\w-]{50,}={0,2}(?![\w/+-])")
"""Version 2, a nonce and a box, in base64."""
_ID = re.compile(
    r"(?<![0-9a-zA-Z])(?P<hex>[0-9a-f]{24})(?=(?:[0-9a-f]{24})?(?:\d{3}|[ci]\d+)?(?![0-9a-zA-Z]))"
    r"|(?<=toolu_)[0-9A-Za-z]{24}(?![0-9A-Za-z])"
    r"|(?<=call_)[0-9A-Za-z]{24}(?![0-9A-Za-z])"
    r"|(?<=msg_|rs__|sco_)[0-9a-f]{48}(?![0-9A-Za-z])"
)
_TIMES = re.compile(r'"(created|[a-z]+_at)":\d{9,10}(\.\d+)?(?=[,}])')
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


@dataclass
class Renamer:
    """Names ids in the order of their appearance."""

    names: dict[str, str] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """The text with ids, sealed texts and times replaced."""

        def name(found: re.Match[str]) -> str:
            return self.names.setdefault(found[0], f"#{len(self.names) + 1}")

        def total(found: re.Match[str]) -> str:
            return f'"input_tokens":{int(found[1]) + int(found[3])}{found[2]}{found[3]}'

        text = _ID.sub(name, _SEAL.sub("<sealed>", text))
        text = _TIMES.sub(r'"\1":"<time>"', text)
        return _ISO.sub('"<time>"', _INPUT.sub(total, text))


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
    by choice. A delta is written as its values by path."""
    merged: list[tuple[str, Leaves | str]] = []
    for event in _by_choice(_events(body)):
        delta = _delta(event)
        last = merged[-1] if merged else ("", "")
        joined = None
        if delta and event.head == last[0] and isinstance(last[1], dict):
            joined = _joined(last[1], delta)
        if joined:
            merged[-1] = event.head, joined
        else:
            merged.append((event.head, delta or event.data))
    return [Event(head, names.text(_written(data))) for head, data in merged]


def _events(body: str) -> Iterator[Event]:
    """The events, without their sequence numbers: a contiguous sequence depends on how deltas were
    cut. What breaks it stays visible."""
    for number, frame in enumerate(frame for frame in body.split("\n\n") if frame):
        head, _, data = f"\n{frame}".partition("\ndata: ")
        found = _SEQUENCE.search(data)
        if found and int(found[1]) == number:
            data = data.replace(found[0], '"sequence_number":0', 1)
        yield Event(head[1:], data)


def _by_choice(events: Iterator[Event]) -> list[Event]:
    """Chunks of different choices come in any order, and a choice's token ids, which have chunks of
    their own, in any number of them between the others."""
    run, keyed = 0, []
    for event in events:
        choice = re.search(r'"choices":\[\{"index":(\d+)', event.data)
        run += choice is None
        has_ids = ',"token_ids":[' in event.data
        keyed.append(((run, int(choice[1]) if choice else -1, not has_ids), event))
        run += choice is None
    return [event for _, event in sorted(keyed, key=lambda item: item[0])]


def _delta(event: Event) -> Leaves | None:
    """The values of an event that is one of several deltas of a block, if it is written as JSON
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
    return dict(_leaves(tree, ()))


def _leaves(node: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Lists of tokens are one value."""
    tokens = isinstance(node, list) and ("token_ids" in path or "logprobs" in path)
    if not node or tokens or not isinstance(node, dict | list):
        yield path, node
        return
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield from _leaves(value, (*path, key))


def _joined(one: Leaves, more: Leaves) -> Leaves | None:
    """Both deltas in one: texts and lists of tokens joined, the last of a count so far; None if
    anything else differs."""
    if list(one) != list(more):
        return None
    joined: Leaves = {}
    for path, value in one.items():
        other = more[path]
        if "usage" in path:
            joined[path] = other
        elif isinstance(value, list) or (isinstance(value, str) and path[-1] in _JOINED_TEXTS):
            joined[path] = value + other
        elif value == other:
            joined[path] = value
        else:
            return None
    return joined


def _written(data: Leaves | str) -> str:
    if isinstance(data, str):
        return data
    by_name = {".".join(map(str, path)): value for path, value in data.items()}
    return msgspec.json.encode(by_name).decode()
