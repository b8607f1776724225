"""Sinks of turn events: one that renders them into an open stream, one that keeps them for a document.

Streams are flushed at the end of a tick of the loop, with one write each. A frame of the bus has a token for every
stream of its parser, and one read may bring several frames: a stream's events of a tick become one, in one system call,
and a client that was woken by the first write is still awake at the last. With 64 streams of 100 tokens a second
(uvloop, client in another process) a token costs 12.0 us so, and 13.3 where each stream is rendered and written in
turn.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from schemas.errors import ErrorInfo, raised, unexpected
from schemas.events import Delta, Finish, Prepared, TurnEvent, failure_of
from services.frontend.turns.answer import Answer
from services.frontend.turns.interfaces import Collector, Renderer
from services.runtime.observability.telemetry import FilteringBoundLogger


class StreamWriter(Protocol):
    """Takes the bytes of a rendered stream. Its methods, except `run`, must not wait."""

    closed: bool
    """No more bytes are accepted."""

    def begin(self, data: bytes) -> None:
        """Takes the first bytes."""
        ...

    def write(self, data: bytes, now: float | None = None) -> None:
        """Takes the next bytes. `now`: the loop's time, if the caller has it."""
        ...

    def close(self, last: bytes = b"") -> None:
        """Ends the stream with these bytes. Idempotent."""
        ...

    def abort(self) -> None:
        """Ends the stream so that its reader does not take it for whole."""
        ...

    async def run(self) -> None:
        """Returns when the stream is closed and all of it is sent."""
        ...


Batch: TypeAlias = tuple[int, list[TurnEvent], int]
"""A choice, its next events, and its output tokens so far."""
W = TypeVar("W", bound=StreamWriter)


class Flusher:
    """Flushes all streams of a loop."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.log = log
        self._due: list[StreamSink[Any]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, stream: "StreamSink[Any]") -> None:
        """Flushes a stream at the end of this tick. Not to be called again before its `render`."""
        if not self._due:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush, self._loop)
        self._due.append(stream)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        due, self._due = self._due, []
        now = loop.time()
        for stream in due:
            try:
                stream.render(now)
            except Exception:  # one stream's failure must not affect the others
                self.log.exception("stream.render_failed")
        for stream in due:
            try:
                stream.send(now)
            except Exception:
                self.log.exception("stream.send_failed")


class StreamSink(Generic[W]):
    """A `TurnSink` that renders into a stream.

    Making the renderer and the writer costs as much as rendering the first events, so they are made beforehand
    (`get_ready`). The first events are written from within the call that brings them, not by the task that awaits the
    turn.
    """

    def __init__(
        self, answer: Answer, flusher: Flusher, make: Callable[[], tuple[Renderer, W]], choices: int = 1
    ) -> None:
        self.begun = False
        """The head is sent: only the stream can be the answer."""
        self.ended = False
        """All events of the answer have come. They may not be written yet."""
        self._running = choices
        self._answer = answer
        self._record = answer.record
        self._log = flusher.log
        self._flusher = flusher
        self._make = make
        self._pending: list[Batch] = []
        """Events of this tick, or from before the stream begins."""
        self._out = b""
        self._broken = False
        self._parts: tuple[Renderer, W] | None = None
        self._prepared: Prepared | None = None

    def refusal(self) -> ErrorInfo | None:
        """Returns the error of a turn that failed before its first block: it can still be the response's status."""
        return failure_of(self._pending[0][1][0]) if self._pending else None

    def get_ready(self) -> tuple[Renderer, W]:
        """Makes the renderer and the writer, once. Raises as they do."""
        if self._parts is None:
            self._parts = self._make()
        return self._parts

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`."""
        self._prepared = prepared

    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Opens the stream with the events so far; from then on events go out as they come. Idempotent.

        Raises TurnwireError for a turn that failed before its first block, and as `get_ready`.
        """
        if self.begun:
            return
        if (refusal := self.refusal()) is not None:
            raise raised(refusal)
        renderer, writer = self.get_ready()
        opening = renderer.start(prepared)
        if self._pending:
            self._render(renderer, asyncio.get_running_loop().time())
            opening, self._out = opening + self._out, b""
        self.begun = True
        writer.begin(opening)
        if self.ended or self._broken:
            writer.close()
            if self.ended and self._running:
                self._answer.cancel("failed")

    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        if self.begun and not self._pending:
            self._flusher.add(self)
        last = events[-1]
        if type(last) is not Delta and self._record.ends(last):
            self._end(last)
            tokens = _all_tokens(last, tokens)
        self._pending.append((choice, events, tokens))
        if not self.begun and self._prepared is not None and self.refusal() is None:
            try:
                self.begin([self._prepared])
            except Exception:  # the handler tries again, and can still answer an error with a status
                self._log.exception("turn.begin_failed")
                self._prepared = None

    def render(self, now: float) -> None:
        """Renders the pending events. `now`: the loop's time."""
        parts = self._parts
        if parts is None or parts[1].closed:
            self._pending.clear()
        else:
            self._render(parts[0], now)

    def send(self, now: float) -> None:
        """Writes the rendered bytes. Called after all streams of the tick are rendered."""
        if self._parts is None:
            return
        writer = self._parts[1]
        out, self._out = self._out, b""
        if out and not (self.ended or self._broken):
            writer.write(out, now)
        elif self._broken and not (out or writer.closed):  # not even the error could be rendered
            writer.abort()
        elif self.ended or self._broken:
            writer.close(out)

    async def finish(self) -> None:
        """Returns when the whole stream is sent. Raises as the writer."""
        await self.get_ready()[1].run()

    def give_up(self, error: ErrorInfo) -> None:
        """Ends the stream, which has begun, with an error."""
        renderer, writer = self.get_ready()
        writer.close(renderer.error(error))

    def stop(self) -> None:
        """Accepts nothing more."""
        if self._parts is not None:
            self._parts[1].closed = True

    def _end(self, last: TurnEvent) -> None:
        self._running -= 1
        failed = failure_of(last) is not None
        self.ended = failed or not self._running
        if self.begun and failed and self._running:
            self._answer.cancel("failed")

    def _render(self, renderer: Renderer, now: float) -> None:
        pending, self._pending = self._pending, []
        try:
            if len(pending) == 1:
                choice, events, tokens = pending[0]
                self._record.batch(tokens, now, choice)
                self._out = renderer.events(events, choice)
            else:
                for choice, tokens in {choice: tokens for choice, _, tokens in pending}.items():
                    self._record.batch(tokens, now, choice)
                self._out = b"".join([renderer.events(events, choice) for choice, events in _merged(pending)])
        except Exception as error:  # the caller renders many streams: this one's failure must not affect the others
            self._log.exception("turn.render_failed")
            self._broken = True
            self._record.outcome = "internal"
            self._out = renderer.error(unexpected(error))
            return
        if self.ended and self._answer.on_end is not None:
            try:
                self._answer.on_end(renderer)
            except Exception:  # the client still gets the end of its answer
                self._log.exception("turn.end_failed")


class DocumentSink:
    """A `TurnSink` that keeps all events until the turns have ended."""

    begun = False
    """See `StreamSink.begun`: an error can be the answer until the end."""

    def __init__(self, answer: Answer, make: Callable[[], Collector] | None = None, choices: int = 1) -> None:
        """`make` makes what collects the document; None: only the events are wanted."""
        self.ended = False
        self.events: list[list[TurnEvent]] = [[] for _ in range(choices)]
        """Of each choice."""
        self.body = b""
        """The document."""
        self._answer = answer
        self._make = make
        self._failure: ErrorInfo | None = None
        self._done = asyncio.Event()
        self._running = choices
        self._prepared: Sequence[Prepared] = ()

    def opened(self, prepared: Prepared) -> None:
        """See `TurnSink.opened`."""

    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Records that every turn is open."""
        self._prepared = prepared

    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        self.events[choice] += events
        last, record = events[-1], self._answer.record
        if type(last) is not Delta and record.ends(last):
            self._running -= 1
            self._failure = failure_of(last)
            self.ended = self._failure is not None or not self._running
            tokens = _all_tokens(last, tokens)
        record.batch(tokens, asyncio.get_running_loop().time(), choice)
        if self.ended:
            self._done.set()

    async def finish(self) -> None:
        """Makes the document when the turns have ended. Raises TurnwireError where one fails."""
        await self._done.wait()
        if self._failure is not None:
            if self._running:
                self._answer.cancel("failed")
            raise raised(self._failure)
        if self._make is None:
            return
        collector = self._make()
        collector.start(self._prepared)
        for choice, events in enumerate(self.events):
            collector.events(events, choice)
        self.body = collector.body()
        if self._answer.on_end is not None:
            self._answer.on_end(collector)

    def give_up(self, error: ErrorInfo) -> None:
        """Ends the answer with an error."""
        self._failure = error
        self._done.set()

    def stop(self) -> None:
        """See `StreamSink.stop`: nothing follows the document."""


class ChoiceSink:
    """The `TurnSink` of one choice of several."""

    def __init__(self, sink: StreamSink[Any] | DocumentSink, choice: int) -> None:
        self._sink = sink
        self._choice = choice

    def opened(self, prepared: Prepared) -> None:
        """Does nothing: the answer begins when all choices are prepared."""

    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        """See `TurnSink.push`."""
        self._sink.push(events, tokens, self._choice)


def _merged(pending: list[Batch]) -> Iterator[tuple[int, list[TurnEvent]]]:
    """Merges successive events of one choice, so that their deltas become one."""
    for choice, batches in groupby(pending, key=lambda batch: batch[0]):
        yield choice, [event for _, events, _ in batches for event in events]


def _all_tokens(last: TurnEvent, tokens: int) -> int:
    """The output tokens of a turn that ends, the end token included."""
    return last.usage.output if isinstance(last, Finish) else tokens
