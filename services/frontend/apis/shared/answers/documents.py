"""Makes the document of an answer from the API's own stream, whose pieces are put together as by the SDKs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from schemas.events import Finish, Prepared, TurnEvent
from services.frontend.turns.interfaces import Renderer

_DATA = b"data: {"


class StreamCollector:
    """Collects an answer by rendering its stream, so that the document and the stream have the same content."""

    def __init__(self, stream: Renderer, merged: Callable[[Iterator[dict[str, Any]]], dict[str, Any]]) -> None:
        """`merged`: makes the document from the events of the whole stream."""
        self._stream = stream
        self._merged = merged
        self._prepared: Sequence[Prepared] = ()
        self._events: defaultdict[int, list[TurnEvent]] = defaultdict(list)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The document. Raises RuntimeError where a turn has not finished."""
        finished = [turn for turn in self._events.values() if turn and type(turn[-1]) is Finish]
        if not finished or len(finished) < len(self._prepared):
            raise RuntimeError("the turn has not finished")
        stream = self._stream.start(self._prepared)
        for choice in sorted(self._events):
            stream += self._stream.events(self._events[choice], choice)
        return self._merged(payloads(stream))

    def start(self, prepared: Sequence[Prepared]) -> None:
        """See `Collector.start`."""
        self._prepared = prepared

    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> None:
        """See `Collector.events`."""
        self._events[choice] += events

    def body(self) -> bytes:
        """See `Collector.body`."""
        return msgspec.json.encode(self.document)


def merge(into: dict[str, Any], piece: dict[str, Any]) -> None:
    """Adds a piece: texts and lists are appended, objects merged, numbers and null replaced.

    Calls are merged by their `index`, which a document does not have.
    """
    for name, value in piece.items():
        held = into.get(name)
        if isinstance(value, list):
            if held is None:
                held = into[name] = []
            for item in value:
                index = item.pop("index") if name == "tool_calls" else len(held)
                if index < len(held):
                    merge(held[index], item)
                else:
                    held.append(item)
        elif isinstance(value, dict) and held is not None:
            merge(held, value)
        elif isinstance(value, str) and held is not None:
            into[name] = held + value
        elif value is not None or name not in into:
            into[name] = value


def payloads(stream: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream's events."""
    for line in stream.split(b"\n"):
        if line.startswith(_DATA):
            yield msgspec.json.decode(line[len(_DATA) - 1 :])
