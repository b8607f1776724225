"""Renders the events of an answer into a stream.

    state        the next events                         `begin`, when all turns are open
    Opening      are kept                                starts the stream
    Ready        start the stream                        starts it without events
    StartFailed  are kept                                raises the error
    Streaming    are sent at the end of the tick         does nothing

`opened` makes `Opening` `Ready`: the only turn is open, before the task that awaits it runs. So the
call that brings the first events also writes them. A first event that is a failure is kept: `begin`
raises it, and it becomes the response's status.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import TypeAlias

from typing_extensions import override

from schemas.errors import ErrorInfo, raised, unexpected
from schemas.events import Delta, LastEvent, Prepared, TurnEvent, failure_of
from services.frontend.http.sse import StreamWriter
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.flusher import FlushedStream, Flusher
from services.frontend.turns.interfaces import Renderer, RenderInfo
from services.frontend.turns.sinks import AnswerSink
from services.runtime.nats.requests import after_sending

MakeRenderer: TypeAlias = Callable[[RenderInfo], Renderer]
Batch: TypeAlias = tuple[int, list[TurnEvent], int]
"""A choice, its next events, and its output tokens so far."""


class Opening:
    """The turns are being opened."""


@dataclass(slots=True)
class Ready:
    """A worker has the only turn."""

    prepared: Prepared


@dataclass(slots=True)
class StartFailed:
    """The first events could not start the stream."""

    error: Exception


@dataclass(slots=True)
class Streaming:
    """The head is sent, so errors can only be sent in the stream."""

    renderer: Renderer
    rendered: bytes = b""
    """The bytes of this tick."""
    is_broken: bool = False
    """Events could not be rendered. The stream ends with an error."""


StreamState: TypeAlias = Opening | Ready | StartFailed | Streaming


class StreamSink(AnswerSink, FlushedStream):
    """Renders turn events into a stream.

    Making the renderer costs as much as rendering the first events, so it is made in advance
    (`get_ready`), once the preprocessor has the request.
    """

    def __init__(
        self,
        record: AnswerRecord,
        make_renderer: MakeRenderer,
        info: RenderInfo,
        writer: StreamWriter,
        flusher: Flusher,
    ) -> None:
        super().__init__(record)
        self._make_renderer = make_renderer
        self._info = info
        self._writer = writer
        self._flusher = flusher
        self._log = flusher.log
        self._renderer: Renderer | None = None
        """None until it is made."""
        self._state: StreamState = Opening()
        self._pending: list[Batch] = []
        """Events of this tick, or all events before the stream starts."""

    @property
    @override
    def started(self) -> bool:
        return isinstance(self._state, Streaming)

    @override
    def expect_choices(self, choices: int) -> None:
        self._running = choices
        after_sending(self.get_ready)

    def get_ready(self) -> Renderer:
        """Makes the renderer, once."""
        if self._renderer is None:
            self._renderer = self._make_renderer(self._info)
        return self._renderer

    @override
    def opened(self, prepared: Prepared) -> None:
        self._state = Ready(prepared)

    @override
    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Starts the stream with the events so far, unless its first events have started it.

        Raises TurnwireError for a turn that failed before its first block, and errors of
        `get_ready`.
        """
        state = self._state
        if isinstance(state, StartFailed):
            raise state.error
        if isinstance(state, Streaming):
            return
        if self._pending:
            _, first, _ = self._pending[0]
            failure = failure_of(first[0])
            if failure is not None:
                raise raised(failure)
        self._start(prepared)

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        if self.ended or not events:
            return
        last = events[-1]
        if type(last) is not Delta and isinstance(last, LastEvent):
            tokens = self._end_choice(last, choice, tokens)
        state = self._state
        if type(state) is Streaming and not self._pending:
            self._flusher.add(self)
        self._pending.append((choice, events, tokens))
        if type(state) is Ready and failure_of(events[0]) is None:
            self._start_early(state)

    @override
    def render_pending(self, now: float) -> None:
        stream = self._state
        if isinstance(stream, Streaming) and not self._writer.closed:
            self._render(stream, now)
        else:
            self._pending.clear()

    @override
    def send(self, now: float) -> None:
        stream = self._state
        if not isinstance(stream, Streaming):
            return
        rendered = stream.rendered
        stream.rendered = b""
        if stream.is_broken and not (rendered or self._writer.closed):
            self._writer.abort()  # not even the error could be rendered
        elif self.ended or stream.is_broken:
            self._writer.close(rendered)
        elif rendered:
            self._writer.write(rendered, now)

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

    def _start_early(self, ready: Ready) -> None:
        """Starts the stream of the only choice before the gateway's `open` has returned."""
        try:
            self._start([ready.prepared])
        except Exception as error:  # the handler gets it, and can still respond with a status
            self._log.exception("turn.begin_failed")
            self._state = StartFailed(error)

    def _start(self, prepared: Sequence[Prepared]) -> None:
        """Sends the head, the opening and the events so far."""
        stream = Streaming(self.get_ready())
        first = stream.renderer.start(prepared)
        if self._pending:
            self._render(stream, asyncio.get_running_loop().time())
            first += stream.rendered
            stream.rendered = b""
        self._writer.begin(first)
        self._state = stream
        if self.ended or stream.is_broken:
            self._writer.close()

    def _render(self, stream: Streaming, now: float) -> None:
        """Renders the pending events."""
        pending = self._pending
        self._pending = []
        try:
            if len(pending) == 1:
                choice, events, tokens = pending[0]
                self._record.record_batch(tokens, now, choice)
                stream.rendered = stream.renderer.render(events, choice)
            else:
                stream.rendered = self._render_merged(stream.renderer, pending, now)
        except Exception as error:  # one stream's failure must not affect the others of the tick
            self._log.exception("turn.render_failed")
            stream.is_broken = True
            self._record.outcome = "internal"
            stream.rendered = stream.renderer.error(unexpected(error))

    def _render_merged(self, renderer: Renderer, pending: list[Batch], now: float) -> bytes:
        """Renders several batches, as few as possible."""
        latest_tokens = {choice: tokens for choice, _, tokens in pending}
        for choice, tokens in latest_tokens.items():
            self._record.record_batch(tokens, now, choice)
        return b"".join([renderer.render(events, choice) for choice, events in _merge(pending)])


def _merge(pending: list[Batch]) -> Iterator[tuple[int, list[TurnEvent]]]:
    """Merges successive events of one choice, so that their deltas become one."""
    for choice, batches in groupby(pending, key=itemgetter(0)):
        yield choice, [*chain.from_iterable(events for _, events, _ in batches)]
