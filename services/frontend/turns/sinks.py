"""Passes turn events on: renders them into an open stream, or keeps them for a document.

`started`, `ended` and `failed` show the state of the answer. A sink does not open or cancel turns:
`answer.RunningAnswer` does.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import TypeAlias

from typing_extensions import override

from schemas.errors import ErrorInfo, raised, unexpected
from schemas.events import Delta, Finish, LastEvent, Prepared, TurnEvent, failure_of
from services.frontend.http.sse import StreamWriter
from services.frontend.turns.answer_record import AnswerRecord
from services.frontend.turns.flusher import FlushedStream, Flusher
from services.frontend.turns.interfaces import Renderer, RenderInfo, TurnSink
from services.runtime.nats.requests import after_sending

MakeRenderer: TypeAlias = Callable[[RenderInfo], Renderer]
Batch: TypeAlias = tuple[int, list[TurnEvent], int]
"""A choice, its next events, and its output tokens so far."""


class AnswerSink(TurnSink):
    """Receives the events of all turns of an answer, each with its choice."""

    def __init__(self, record: AnswerRecord) -> None:
        self.started = False
        """The head is sent, so errors can only be sent in the answer."""
        self.ended = False
        """All events of the answer have arrived. They may not be written yet."""
        self._record = record
        self._running = 0
        """Choices that have not ended."""
        self._failure: ErrorInfo | None = None

    @property
    def failed(self) -> bool:
        """Whether the answer has failed while some of its choices still run."""
        return self._failure is not None and self._running > 0

    @abstractmethod
    def expect_choices(self, choices: int) -> None:
        """Takes the number of choices of an admitted request. Their turns are opened next."""

    @abstractmethod
    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Starts the answer when all turns are open. Raises TurnwireError for a turn that has
        failed since."""

    @override
    @abstractmethod
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None: ...

    @abstractmethod
    async def finish(self) -> None:
        """Returns at the end of the answer."""

    @abstractmethod
    def give_up(self, error: ErrorInfo) -> None:
        """Ends the started answer with an error."""

    @abstractmethod
    def stop(self) -> None:
        """Accepts nothing more."""

    def _apply_end(self, events: Sequence[TurnEvent], choice: int, tokens: int) -> int:
        """Applies the end of a choice, if these events have it; a failure ends the whole answer.
        Returns the output tokens of the choice after them. `tokens`: before its end token."""
        last = events[-1]
        if type(last) is Delta or not isinstance(last, LastEvent):
            return tokens
        self._record.record_end(last, choice)
        self._running -= 1
        self._failure = failure_of(last)
        self.ended = self._failure is not None or not self._running
        return _all_tokens(last, tokens)


class StreamSink(AnswerSink, FlushedStream):
    """Renders turn events into a stream.

    Making the renderer costs as much as rendering the first events, so it is made in advance
    (`get_ready`), once the preprocessor has the request. The call that brings the first events also
    writes them; it does not wait for the task that awaits the turn.
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
        self._renderer: Renderer | None = None
        """None until the stream is made ready."""
        self._writer = writer
        self._flusher = flusher
        self._log = flusher.log
        self._pending: list[Batch] = []
        """Events of this tick, or all events before the stream starts."""
        self._rendered = b""
        self._broken = False
        """The stream could not be rendered."""
        self._prepared: Prepared | None = None
        self._start_error: Exception | None = None
        """Why the stream could not be started when its first events came."""

    def refusal(self) -> ErrorInfo | None:
        """Returns the error of a turn that failed before its first block, which can still be the
        response's status."""
        if not self._pending:
            return None
        _, events, _ = self._pending[0]
        return failure_of(events[0])

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
        self._prepared = prepared

    @override
    def begin(self, prepared: Sequence[Prepared]) -> None:
        """Starts the stream with the events so far; later events are sent as they arrive.
        Idempotent.

        Raises TurnwireError for a turn that failed before its first block, and errors of
        `get_ready`.
        """
        if self.started:
            return
        if self._start_error is not None:
            raise self._start_error
        refusal = self.refusal()
        if refusal is not None:
            raise raised(refusal)

        renderer = self.get_ready()
        opening = renderer.start(prepared)
        if self._pending:
            self._render(renderer, asyncio.get_running_loop().time())
            opening += self._rendered
            self._rendered = b""
        self._writer.begin(opening)
        self.started = True
        if self.ended or self._broken:
            self._writer.close()

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        if self.ended or not events:
            return
        if self.started and not self._pending:
            self._flusher.add(self)
        tokens = self._apply_end(events, choice, tokens)
        self._pending.append((choice, events, tokens))
        if not self.started and self._prepared is not None and self.refusal() is None:
            self._begin_early(self._prepared)

    @override
    def render(self, now: float) -> None:
        if self._renderer is None or self._writer.closed:
            self._pending.clear()
        else:
            self._render(self._renderer, now)

    @override
    def send(self, now: float) -> None:
        rendered = self._rendered
        self._rendered = b""
        if self._broken and not (rendered or self._writer.closed):
            self._writer.abort()  # not even the error could be rendered
        elif self.ended or self._broken:
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

    def _begin_early(self, prepared: Prepared) -> None:
        """Starts the stream of the only choice before the gateway's `open` has returned."""
        try:
            self.begin([prepared])
        except Exception as error:  # the handler gets it, and can still respond with a status
            self._log.exception("turn.begin_failed")
            self._start_error = error
            self._prepared = None

    def _render(self, renderer: Renderer, now: float) -> None:
        pending = self._pending
        self._pending = []
        try:
            if len(pending) == 1:
                choice, events, tokens = pending[0]
                self._record.record_batch(tokens, now, choice)
                self._rendered = renderer.render(events, choice)
            else:
                self._rendered = self._render_merged(renderer, pending, now)
        except Exception as error:  # one stream's failure must not affect the others of the tick
            self._log.exception("turn.render_failed")
            self._broken = True
            self._record.outcome = "internal"
            self._rendered = renderer.error(unexpected(error))

    def _render_merged(self, renderer: Renderer, pending: list[Batch], now: float) -> bytes:
        """Renders several batches, as few as possible."""
        latest_tokens = {choice: tokens for choice, _, tokens in pending}
        for choice, tokens in latest_tokens.items():
            self._record.record_batch(tokens, now, choice)
        return b"".join([renderer.render(events, choice) for choice, events in _merge(pending)])


class EventBuffer(AnswerSink):
    """Keeps all events until the turns have ended."""

    def __init__(self, record: AnswerRecord) -> None:
        """`started` stays False, because an error can be the response until the end."""
        super().__init__(record)
        self.events: Sequence[list[TurnEvent]] = ()
        """The events of each choice."""
        self.prepared: Sequence[Prepared] = ()
        self._done = asyncio.Event()

    @override
    def expect_choices(self, choices: int) -> None:
        self._running = choices
        self.events = [[] for _ in range(choices)]

    @override
    def opened(self, prepared: Prepared) -> None:
        pass

    @override
    def begin(self, prepared: Sequence[Prepared]) -> None:
        self.prepared = prepared

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0, choice: int = 0) -> None:
        if self.ended or not events:
            return
        self.events[choice] += events
        tokens = self._apply_end(events, choice, tokens)
        self._record.record_batch(tokens, asyncio.get_running_loop().time(), choice)
        if self.ended:
            self._done.set()

    @override
    async def finish(self) -> None:
        """Waits until the turns have ended. Raises TurnwireError if one failed."""
        await self._done.wait()
        if self._failure is not None:
            raise raised(self._failure)

    @override
    def give_up(self, error: ErrorInfo) -> None:
        self._failure = error
        self._done.set()

    @override
    def stop(self) -> None:
        """Does nothing: nothing follows the events."""


def _merge(pending: list[Batch]) -> Iterator[tuple[int, list[TurnEvent]]]:
    """Merges successive events of one choice, so that their deltas become one."""
    for choice, batches in groupby(pending, key=itemgetter(0)):
        yield choice, [*chain.from_iterable(events for _, events, _ in batches)]


def _all_tokens(last: LastEvent, tokens: int) -> int:
    """Returns the output tokens of a turn that ends, its end token included."""
    return last.usage.kept if isinstance(last, Finish) else tokens
