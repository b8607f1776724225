"""Records one request and its answer, with times. Pure."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from bench.apis import Api, Tokens

TAIL_BYTES: Final = 4096
"""Bytes of a stream's end that are kept (its usage, its end or its error), or of another answer."""
SEPARATOR: Final = b"\n\n"


class Exchange:
    """One request and its answer. Times are ns of the monotonic clock, which all processes share;
    0: it did not happen.

    Latencies count from `due`, the time at which the client has the request, so that they include
    the set-up of a fresh connection.
    """

    __slots__ = (
        "_rest",
        "answer",
        "blocks",
        "due",
        "ended",
        "error",
        "events",
        "finished",
        "outputs",
        "reads",
        "sent",
        "status",
        "tail",
    )

    def __init__(self, due: int, *, keep: bool = False) -> None:
        """`keep`: keep all events with their times (`each`), to examine a single stream."""
        self.due = due
        self.sent = 0
        self.ended = 0
        self.status = 0
        self.reads: list[tuple[int, int]] = []
        """Each read that completed events with output: its time, and the number of events."""
        self.events = 0
        self.outputs = 0
        self.tail = b""
        self.answer = b""
        """The start of an answer that is not an event stream."""
        self.error: str | None = None
        self.finished = False
        """Whether the answer was complete, without an error."""
        self.blocks: list[tuple[int, bytes]] | None = [] if keep else None
        self._rest = b""

    def body(self, now: int, data: bytes, output: bytes) -> None:
        """Records bytes of an event stream, read at `now`. `output`: bytes that every event with
        output contains."""
        data = self._rest + data
        end = data.rfind(SEPARATOR) + len(SEPARATOR)
        if end < len(SEPARATOR):
            self._rest = data
            return
        self._rest = data[end:]
        block = data[:end]
        self.events += block.count(SEPARATOR)
        count = block.count(output)
        if count:
            self.outputs += count
            self.reads.append((now, count))
        self.tail = (self.tail + block)[-TAIL_BYTES:]
        if self.blocks is not None:
            self.blocks.append((now, block))

    def plain(self, data: bytes) -> None:
        """Records bytes of an answer that is not an event stream."""
        self.answer = (self.answer + data)[:TAIL_BYTES]

    def close(self, now: int, api: Api) -> None:
        """Records the end of the response, and decides whether it was good."""
        self.ended = now
        if self.error is not None:
            return
        if self.status != 200:
            self.error = f"status {self.status}: {_excerpt(self.answer)}"
        elif self.answer or not self.events:
            self.error = f"no event stream: {_excerpt(self.answer)}"
        elif api.end not in self.tail:
            self.error = (
                f"the stream ended without {api.end.decode()}: {_excerpt(self.tail[-300:])}"
            )
        elif self._rest.strip():
            self.error = f"the stream ended within an event: {_excerpt(self._rest)}"
        else:
            self.finished = True

    def fail(self, now: int, error: str) -> None:
        """Records that the exchange broke off. What came before stays."""
        self.ended = now
        if self.error is None:
            self.error = error
        if self.events and not self.finished:
            self.error += f" (after {self.events} events)"

    @property
    def ttft_ms(self) -> float | None:
        """Time from `due` to the first output."""
        return (self.reads[0][0] - self.due) / 1e6 if self.reads else None

    @property
    def send_lag_ms(self) -> float:
        """How late the client sent the request, including the time for a fresh connection."""
        return (self.sent - self.due) / 1e6 if self.sent else 0.0

    def gaps_ms(self) -> Iterator[float]:
        """Yields the times between one read with output and the next, as a person sees them."""
        for (before, _), (after, _) in pairwise(self.reads):
            yield (after - before) / 1e6

    def event_gaps_ms(self) -> Iterator[float]:
        """Yields the times between one event with output and the next; 0 if both came in one
        read."""
        previous = 0
        for time, count in self.reads:
            if previous:
                yield (time - previous) / 1e6
            for _ in range(count - 1):
                yield 0.0
            previous = time

    def tokens(self, api: Api) -> Tokens | None:
        """Returns the token counts in the answer."""
        return api.tokens(self.tail)

    def each(self) -> list[tuple[int, bytes]]:
        """All events, with the time of the read that completed each. Needs `keep`."""
        return [
            (time, event)
            for time, block in self.blocks or []
            for event in block.split(SEPARATOR)
            if event
        ]


def _excerpt(data: bytes) -> str:
    return data[:300].decode("utf-8", "replace").strip() or "(nothing)"
