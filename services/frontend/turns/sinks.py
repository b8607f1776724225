"""Passes turn events on: renders them into an open stream, or keeps them for a document.

Streams are flushed at the end of a tick of the event loop, with one write each. A frame of the bus
has a token for every stream of its parser, and one read may bring several frames. A stream's events
of a tick are merged and sent in one system call, and all writes follow each other, so that a client
that the first one woke is still awake at the last. With 64 streams of 100 tokens a second (uvloop,
client in another process) a token costs 12.0 us; rendering and writing one stream after the other
costs 13.3.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from typing_extensions import override

from schemas.errors import ErrorInfo, raised, unexpected
from schemas.events import Delta, Finish, Prepared, TurnEvent, failure_of
from services.frontend.turns.answer import OpenAnswer
from services.frontend.turns.interfaces import Collector, Renderer, TurnSink
from services.runtime.observability.telemetry import FilteringBoundLogger


class StreamWriter(Protocol):
    """Sends the bytes of a rendered stream. Its methods, except `run`, do not block."""

    closed: bool
    """No more bytes are accepted."""

    def begin(self, data: bytes) -> None:
        """Sends the first bytes."""
        ...

    def write(self, data: bytes, now: float | None = None) -> None:
        """Sends the next bytes. `now`: the loop's time, if the caller has it."""
        ...

    def close(self, last: bytes = b"") -> None:
        """Ends the stream with these bytes. Idempotent."""
        ...

    def abort(self) -> None:
        """Breaks the stream off, so that its reader does not take it for complete."""
        ...

    async def run(self) -> None:
        """Returns when the stream is closed and all bytes are sent."""
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
        """Flushes a stream at the end of this tick. Must not be called again before the stream's
        `render`."""
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


class StreamSink(TurnSink, Generic[W]):
    """Renders turn events into a stream.

    Making the renderer and the writer costs as much as rendering the first events, so they are made
    in advance (`get_ready`). The call that brings the first events also writes them; it does not
    wait for the task that awaits the turn.
    """

    def __init__(
        self,
        answer: OpenAnswer,
        flusher: Flusher,
        make: Callable[[], tuple[Renderer, W]],
        choices: int = 1,
    ) -> None:
        self.started = False
        """The head is sent, so errors can only be sent in the stream."""
        self.ended = False
        """All events of the answer have arrived. They may not be written yet."""
        self._running = choices
        self._answer = answer
        self._record = answer.record
        self._log = flusher.log
        self._flusher = flusher
        self._make = make
        self._pending: list[Batch] = []
        """Events of this tick, or all events before the stream starts."""
        self._out = b""
        self._broken = False
        self._parts: tuple[Renderer, W] | None = None
        self._prepared: Prepared | None = None

    def refusal(self) -> ErrorInfo | None:
        """Returns the error of a turn that failed before its first block, which can still be the
        response's status."""
        return failure_of(self._pending[0][1][0]) if self._pending else None

    def get_ready(self) -> tuple[Renderer, W]:
        """Makes the renderer and the writer, once. Raises as they do."""
        if self._parts is None:
            self._parts = self._make()
        return self._parts

    @override
    def opened(self, prepared: Prepared) -> None:
        self._prepared = prepared

    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Starts the stream with the events so far; later events are sent as they arrive.
        Idempotent.

        Raises TurnwireError for a turn that failed before its first block, and errors of
        `get_ready`.
        """
        if self.started:
            return
        if (refusal := self.refusal()) is not None:
            if self._running:
                self._answer.cancel("failed")
            raise raised(refusal)
        renderer, writer = self.get_ready()
        opening = renderer.start(prepared)
        if self._pending:
            self._render(renderer, asyncio.get_running_loop().time())
            opening, self._out = opening + self._out, b""
        self.started = True
        writer.begin(opening)
        if self.ended or self._broken:
            writer.close()
            if self.ended and self._running:
                self._answer.cancel("failed")

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        if self.ended or not events:
            return
        if self.started and not self._pending:
            self._flusher.add(self)
        last = events[-1]
        if type(last) is not Delta and self._record.ends(last, choice):
            self._end(last)
            tokens = _all_tokens(last, tokens)
        self._pending.append((choice, events, tokens))
        if not self.started and self._prepared is not None and self.refusal() is None:
            try:
                self.begin([self._prepared])
            except Exception:  # the handler tries again, and can still respond with an error status
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
        """Writes the rendered bytes. Called when all streams of the tick are rendered."""
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
        """Returns when the whole stream is sent. Raises errors of the writer."""
        await self.get_ready()[1].run()

    def give_up(self, error: ErrorInfo) -> None:
        """Ends the started stream with an error."""
        renderer, writer = self.get_ready()
        writer.close(renderer.error(error))

    def stop(self) -> None:
        """Closes the writer: no more bytes are accepted."""
        if self._parts is not None:
            self._parts[1].closed = True

    def _end(self, last: TurnEvent) -> None:
        self._running -= 1
        failed = failure_of(last) is not None
        self.ended = failed or not self._running
        if self.started and failed and self._running:
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
                self._out = b"".join(
                    [renderer.events(events, choice) for choice, events in _merge(pending)]
                )
        except Exception as error:  # one stream's failure must not affect the others of the tick
            self._log.exception("turn.render_failed")
            self._broken = True
            self._record.outcome = "internal"
            self._out = renderer.error(unexpected(error))
            return
        if self.ended and self._answer.on_end is not None:
            try:
                self._answer.on_end(renderer)
            except Exception:  # the client must still get the end of its answer
                self._log.exception("turn.end_failed")


class DocumentSink(TurnSink):
    """Keeps all events until the turns have ended."""

    started = False
    """Never set, because an error can be the response until the end."""

    def __init__(
        self, answer: OpenAnswer, make: Callable[[], Collector] | None = None, choices: int = 1
    ) -> None:
        """`make`: makes the collector of the document; None: keep only the events."""
        self.ended = False
        self.events: list[list[TurnEvent]] = [[] for _ in range(choices)]
        """The events of each choice."""
        self.body = b""
        """The document."""
        self._answer = answer
        self._make = make
        self._failure: ErrorInfo | None = None
        self._done = asyncio.Event()
        self._running = choices
        self._prepared: Sequence[Prepared] = ()

    @override
    def opened(self, prepared: Prepared) -> None:
        pass

    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Records that every turn is open."""
        self._prepared = prepared

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        if self.ended or not events:
            return
        self.events[choice] += events
        last, record = events[-1], self._answer.record
        if type(last) is not Delta and record.ends(last, choice):
            self._running -= 1
            self._failure = failure_of(last)
            self.ended = self._failure is not None or not self._running
            tokens = _all_tokens(last, tokens)
        record.batch(tokens, asyncio.get_running_loop().time(), choice)
        if self.ended:
            self._done.set()

    async def finish(self) -> None:
        """Makes the document when the turns have ended. Raises TurnwireError if a turn failed."""
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
        """Does nothing: nothing follows the document."""


class ChoiceSink(TurnSink):
    """Passes on the events of one choice of several."""

    def __init__(self, sink: StreamSink[Any] | DocumentSink, choice: int) -> None:
        self._sink = sink
        self._choice = choice

    @override
    def opened(self, prepared: Prepared) -> None:
        """Does nothing: the answer starts when all choices are prepared."""

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        self._sink.push(events, tokens, self._choice)


def _merge(pending: list[Batch]) -> Iterator[tuple[int, list[TurnEvent]]]:
    """Merges successive events of one choice, so that their deltas become one."""
    for choice, batches in groupby(pending, key=lambda batch: batch[0]):
        yield choice, [event for _, events, _ in batches for event in events]


def _all_tokens(last: TurnEvent, tokens: int) -> int:
    """Returns the output tokens of a turn that ends, its end token included."""
    return last.usage.output if isinstance(last, Finish) else tokens
