"""Renders the events of an answer into a stream.

    state        the next events                     `begin`, when all turns are open
    Opening      are kept, or start the stream       starts the stream
    StartFailed  are dropped                         raises the error
    OpenStream   are sent at the end of the tick     does nothing

Events start the stream if the only turn is open (`opened`), before the task that awaits the turn
runs: the call that brings the first events also writes them. A first event that is a failure is
kept: `begin` raises it, and it becomes the response's status.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import TypeAlias

from typing_extensions import override

from schemas.errors import ErrorInfo, raised, unexpected
from schemas.events import Delta, LastEvent, Prepared, TurnEvent, failure_of
from services.frontend.http.sse import StreamWriter
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.flusher import FlushedStream, Flusher
from services.frontend.turns.interfaces import Renderer
from services.frontend.turns.sinks import AnswerSink
from services.runtime.nats.requests import after_sending
from services.runtime.observability.telemetry import FilteringBoundLogger

Batch: TypeAlias = tuple[int, list[TurnEvent], int]
"""A choice, its next events, and its output tokens so far."""


@dataclass(slots=True)
class Opening:
    """The turns are being opened."""

    early: list[Batch] = field(default_factory=list)
    """The events so far."""
    prepared: Prepared | None = None
    """Set when a worker has the only turn."""

    @property
    def refusal(self) -> ErrorInfo | None:
        """The error of a turn that failed before its first block."""
        if not self.early:
            return None
        _, events, _ = self.early[0]
        return failure_of(events[0])


@dataclass(slots=True)
class StartFailed:
    """The first events could not start the stream."""

    error: Exception


class OpenStream(FlushedStream):
    """The head is sent, so errors can only be sent in the stream."""

    def __init__(
        self,
        renderer: Renderer,
        record: AnswerRecord,
        writer: StreamWriter,
        log: FilteringBoundLogger,
    ) -> None:
        self.pending: list[Batch] = []
        """Events of this tick."""
        self.is_last = False
        """All events of the answer have arrived."""
        self._renderer = renderer
        self._record = record
        self._writer = writer
        self._log = log
        self._rendered = b""
        self._is_broken = False
        """Events could not be rendered. The stream ends with an error."""

    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Sends the head, the opening and the pending events."""
        opening = self._renderer.start(prepared)
        if self.pending:
            self.render_pending(asyncio.get_running_loop().time())
            opening += self._rendered
            self._rendered = b""
        self._writer.begin(opening)
        if self.is_last or self._is_broken:
            self._writer.close()

    @override
    def render_pending(self, now: float) -> None:
        pending = self.pending
        self.pending = []
        if self._writer.closed:
            return
        try:
            if len(pending) == 1:
                choice, events, tokens = pending[0]
                self._record.record_batch(tokens, now, choice)
                self._rendered = self._renderer.render(events, choice)
            else:
                self._rendered = self._render_merged(pending, now)
        except Exception as error:  # one stream's failure must not affect the others of the tick
            self._log.exception("turn.render_failed")
            self._is_broken = True
            self._record.outcome = "internal"
            self._rendered = self._renderer.error(unexpected(error))

    @override
    def send(self, now: float) -> None:
        rendered = self._rendered
        self._rendered = b""
        if self._is_broken and not (rendered or self._writer.closed):
            self._writer.abort()  # not even the error could be rendered
        elif self.is_last or self._is_broken:
            self._writer.close(rendered)
        elif rendered:
            self._writer.write(rendered, now)

    def _render_merged(self, pending: list[Batch], now: float) -> bytes:
        """Renders several batches, as few as possible."""
        latest_tokens = {choice: tokens for choice, _, tokens in pending}
        for choice, tokens in latest_tokens.items():
            self._record.record_batch(tokens, now, choice)
        return b"".join(
            [self._renderer.render(events, choice) for choice, events in _merge(pending)]
        )


class StreamSink(AnswerSink):
    """Starts a stream, and passes the events of an answer to it.

    Making the renderer costs as much as rendering the first events, so it is made in advance
    (`get_ready`), once the preprocessor has the request.
    """

    def __init__(
        self,
        record: AnswerRecord,
        make_renderer: Callable[[], Renderer],
        writer: StreamWriter,
        flusher: Flusher,
    ) -> None:
        super().__init__(record)
        self._make_renderer = make_renderer
        self._writer = writer
        self._flusher = flusher
        self._renderer: Renderer | None = None
        """None until it is made."""
        self._state: Opening | StartFailed | OpenStream = Opening()

    @property
    @override
    def started(self) -> bool:
        return isinstance(self._state, OpenStream)

    @override
    def expect_choices(self, choices: int) -> None:
        self._running = choices
        after_sending(self.get_ready)

    def get_ready(self) -> Renderer:
        """Makes the renderer, once."""
        if self._renderer is None:
            self._renderer = self._make_renderer()
        return self._renderer

    @override
    def opened(self, prepared: Prepared) -> None:
        super().opened(prepared)
        if isinstance(self._state, Opening):
            self._state.prepared = prepared

    @override
    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Starts the stream with the events so far, unless its first events have started it.

        Raises TurnwireError for a turn that failed before its first block, and errors of
        `get_ready`.
        """
        state = self._state
        if isinstance(state, StartFailed):
            raise state.error
        if isinstance(state, Opening):
            if state.refusal is not None:
                raise raised(state.refusal)
            self._start(state, prepared)

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        if self.ended or not events:
            return
        last = events[-1]
        if type(last) is not Delta and isinstance(last, LastEvent):
            tokens = self._end_choice(last, choice, tokens)
        state = self._state
        if type(state) is OpenStream:
            if not state.pending:
                self._flusher.add(state)
            state.pending.append((choice, events, tokens))
            state.is_last = self.ended
        elif isinstance(state, Opening):
            state.early.append((choice, events, tokens))
            if state.prepared is not None and state.refusal is None:
                self._start_early(state, state.prepared)

    @override
    async def finish(self) -> None:
        """Waits until everything is sent. Raises errors of the writer."""
        await self._writer.run()

    @override
    def give_up(self, error: ErrorInfo) -> None:
        self._writer.close(self.get_ready().error(error))

    @override
    def stop(self) -> None:
        self._writer.closed = True

    def _start_early(self, opening: Opening, prepared: Prepared) -> None:
        """Starts the stream of the only choice before the gateway's `open` has returned."""
        try:
            self._start(opening, [prepared])
        except Exception as error:  # the handler gets it, and can still respond with a status
            self._flusher.log.exception("turn.begin_failed")
            self._state = StartFailed(error)

    def _start(self, opening: Opening, prepared: Sequence[Prepared]) -> None:
        log = self._flusher.log
        stream = OpenStream(self.get_ready(), self._record, self._writer, log)
        stream.pending = opening.early
        stream.is_last = self.ended
        stream.begin(prepared)
        self._state = stream


def _merge(pending: list[Batch]) -> Iterator[tuple[int, list[TurnEvent]]]:
    """Merges successive events of one choice, so that their deltas become one."""
    for choice, batches in groupby(pending, key=itemgetter(0)):
        yield choice, [*chain.from_iterable(events for _, events, _ in batches)]
