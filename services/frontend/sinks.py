"""Where the events of a request's turns end up: in an open stream, or together until the turns are done."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from structlog.typing import FilteringBoundLogger

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Delta, Prepared, TurnEvent
from services.frontend.dialects.base import Renderer, failure_of
from services.frontend.flush import Flusher
from services.frontend.record import TurnRecord
from services.frontend.sse import SseWriter

Parts: TypeAlias = tuple[Renderer, SseWriter]
"""What a stream is made with."""


class StreamSink:
    """A `TurnSink` that renders into a stream, once for all that came in a tick.

    What the stream is made with costs as much as its first events do, so it is made beforehand (`get_ready`); then the
    first events are written from within the call that brings them, instead of by the task that waits for the turn.
    """

    __slots__ = (
        "_broken",
        "_flusher",
        "_log",
        "_make",
        "_on_end",
        "_on_failure",
        "_out",
        "_parts",
        "_prepared",
        "_record",
        "_running",
        "_waiting",
        "begun",
        "ended",
    )

    def __init__(
        self,
        record: TurnRecord,
        log: FilteringBoundLogger,
        flusher: Flusher,
        make: Callable[[], Parts],
        choices: int = 1,
        *,
        on_end: Callable[[Renderer], None] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """`on_end` is called before the last bytes go, `on_failure` when one choice's failure has ended the others."""
        self.begun = False
        """The head is written: nothing but the stream can be the answer."""
        self.ended = False
        """All that belongs to the answer has come. It may not be written yet."""
        self._running = choices
        self._record = record
        self._log = log
        self._flusher = flusher
        self._make = make
        self._on_end, self._on_failure = on_end, on_failure
        self._waiting: list[tuple[int, list[TurnEvent]]] = []
        """What came in this tick, or before the stream begins."""
        self._out = b""
        self._broken = False
        self._parts: Parts | None = None
        self._prepared: Prepared | None = None

    def refusal(self) -> ErrorInfo | None:
        """The error of a turn that failed before it said anything: it can still be the response's status."""
        return failure_of(self._waiting[0][1][0]) if self._waiting else None

    def get_ready(self) -> Parts:
        """Makes what the stream is made with, if that was not done before. Raises what that raises."""
        parts = self._parts
        if parts is None:
            parts = self._parts = self._make()
        return parts

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`."""
        self._prepared = prepared

    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Opens the stream, with what is there by now; from then on events go out as they come.

        Does nothing the second time. Raises as `get_ready`.
        """
        if self.begun:
            return
        renderer, writer = self.get_ready()
        opening = renderer.start(prepared)
        if self._waiting:
            self._render(renderer, asyncio.get_running_loop().time())
            opening, self._out = opening + self._out, b""
        self.begun = True
        writer.begin(opening)
        if self.ended or self._broken:
            writer.close()
            if self.ended and self._running and self._on_failure is not None:
                self._on_failure()

    def push(self, events: list[TurnEvent], choice: int = 0) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        if self.begun and not self._waiting:
            self._flusher.add(self)
        self._waiting.append((choice, events))
        last = events[-1]
        if type(last) is not Delta and self._record.ends(last):
            self._end(last)
        if not self.begun and self._prepared is not None and self.refusal() is None:
            self._begin_early(self._prepared)

    def _begin_early(self, prepared: Prepared) -> None:
        try:
            self.begin([prepared])
        except Exception:
            # Left to the handler, which tries again, and whose errors can still be a status.
            self._log.exception("turn.begin_failed")
            self._prepared = None

    def render(self, now: float) -> None:
        """See `Flushed.render`."""
        parts = self._parts
        if parts is None or parts[1].closed:
            self._waiting.clear()
        else:
            self._render(parts[0], now)

    def send(self, now: float) -> None:
        """See `Flushed.send`."""
        if self._parts is None:
            return
        writer = self._parts[1]
        out, self._out = self._out, b""
        if self.ended or self._broken:
            writer.close(out)
        elif out:
            writer.write(out, now)

    def _end(self, last: TurnEvent) -> None:
        self._running -= 1
        failed = failure_of(last) is not None
        self.ended = failed or not self._running
        if self.begun and failed and self._running and self._on_failure is not None:
            self._on_failure()

    def _render(self, renderer: Renderer, now: float) -> None:
        waiting, self._waiting = self._waiting, []
        self._record.batch(now)
        try:
            if len(waiting) == 1:
                choice, events = waiting[0]
                self._out = renderer.events(events, choice)
            else:
                self._out = b"".join([renderer.events(events, choice) for choice, events in _joined(waiting)])
            if self.ended and self._on_end is not None:
                self._on_end(renderer)
        except Exception:
            # The caller renders the streams of many turns: this one's trouble must not become theirs.
            self._log.exception("turn.render_failed")
            self._broken = True
            self._record.outcome = "internal"
            self._out = renderer.error(ErrorInfo(ErrorKind.ENGINE, "Internal server error"))


class DocumentSink:
    """A `TurnSink` that keeps the events until there are all."""

    def __init__(self, record: TurnRecord, choices: int = 1) -> None:
        self.ended = False
        self.events: list[list[TurnEvent]] = [[] for _ in range(choices)]
        """Of each choice."""
        self.failure: ErrorInfo | None = None
        self.done = asyncio.Event()
        self._running = choices
        self._record = record

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`."""

    def push(self, events: list[TurnEvent], choice: int = 0) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        self.events[choice] += events
        self._record.batch()
        last = events[-1]
        if type(last) is not Delta and self._record.ends(last):
            self._running -= 1
            self.failure = failure_of(last)
            self.ended = self.failure is not None or not self._running
        if self.ended:
            self.done.set()


class Choice:
    """The `TurnSink` of one choice of several."""

    __slots__ = ("_choice", "_sink")

    def __init__(self, sink: StreamSink | DocumentSink, choice: int) -> None:
        self._sink = sink
        self._choice = choice

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`. The answer begins when all choices are prepared."""

    def push(self, events: list[TurnEvent]) -> None:
        """See `TurnSink.push`."""
        self._sink.push(events, self._choice)


def _joined(waiting: Iterable[tuple[int, list[TurnEvent]]]) -> Iterator[tuple[int, list[TurnEvent]]]:
    """What follows each other of one choice in one list, so that its deltas become one."""
    for choice, batches in groupby(waiting, key=lambda batch: batch[0]):
        yield choice, [event for _, events in batches for event in events]
