"""Where the events of a request's turns end up: in an open stream, or together until the turns are done."""

import asyncio
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import TurnEvent
from services.frontend.dialects.base import Renderer, failure_of
from services.frontend.record import TurnRecord
from services.frontend.sse import SseWriter


class StreamSink:
    """A `TurnSink` that renders into a stream. What comes before `attach` waits for it."""

    def __init__(self, record: TurnRecord, log: FilteringBoundLogger, choices: int = 1) -> None:
        self.ended = False
        self._running = choices
        self._record = record
        self._log = log
        self._early: list[tuple[int, list[TurnEvent]]] = []
        self._renderer: Renderer | None = None
        self._writer: SseWriter | None = None
        self._on_end: Callable[[Renderer], None] | None = None
        self._on_failure: Callable[[], None] | None = None

    def refusal(self) -> ErrorInfo | None:
        """The error of a turn that failed before it said anything: it can still be the response's status."""
        return failure_of(self._early[0][1][0]) if self._early else None

    def attach(
        self,
        renderer: Renderer,
        writer: SseWriter,
        *,
        on_end: Callable[[Renderer], None] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """From now on events go out as they come. `on_end` is called before the last bytes go, `on_failure` when one
        choice's failure has ended the others."""
        self._renderer, self._writer = renderer, writer
        self._on_end, self._on_failure = on_end, on_failure
        early, self._early = self._early, []
        for number, (choice, events) in enumerate(early, 1):
            self._render(choice, events, last=self.ended and number == len(early))

    def push(self, events: list[TurnEvent], choice: int = 0) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        failed = False
        if self._record.batch(events):
            self._running -= 1
            failed = failure_of(events[-1]) is not None
            self.ended = failed or not self._running
        if self._writer is None:
            self._early.append((choice, events))
        else:
            self._render(choice, events, last=self.ended)
        if failed and self._running and self._on_failure is not None:
            self._on_failure()

    def _render(self, choice: int, events: list[TurnEvent], *, last: bool) -> None:
        renderer, writer = self._renderer, self._writer
        if renderer is None or writer is None:
            return
        try:
            data = renderer.events(events, choice)
            if last and self._on_end is not None:
                self._on_end(renderer)
            writer.write(data)
        except Exception:
            # The caller hands out the events of many turns: this one's trouble must not become theirs.
            self._log.exception("turn.render_failed")
            self._record.outcome = "internal"
            writer.write(renderer.error(ErrorInfo(ErrorKind.ENGINE, "Internal server error")))
            writer.close()
        if last:
            writer.close()


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

    def push(self, events: list[TurnEvent], choice: int = 0) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        self.events[choice] += events
        if self._record.batch(events):
            self._running -= 1
            self.failure = failure_of(events[-1])
            self.ended = self.failure is not None or not self._running
        if self.ended:
            self.done.set()


class Choice:
    """The `TurnSink` of one choice of several."""

    __slots__ = ("_choice", "_sink")

    def __init__(self, sink: StreamSink | DocumentSink, choice: int) -> None:
        self._sink = sink
        self._choice = choice

    def push(self, events: list[TurnEvent]) -> None:
        """See `TurnSink.push`."""
        self._sink.push(events, self._choice)
