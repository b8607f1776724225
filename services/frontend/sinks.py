"""Where a turn's events end up: in an open stream, or together until the turn is done."""

import asyncio

from structlog.typing import FilteringBoundLogger

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import TurnEvent
from services.frontend.dialects.base import Renderer, failure_of
from services.frontend.record import TurnRecord
from services.frontend.sse import SseWriter


class StreamSink:
    """A `TurnSink` that renders into a stream. What comes before `attach` waits for it."""

    def __init__(self, record: TurnRecord, log: FilteringBoundLogger) -> None:
        self.ended = False
        self._record = record
        self._log = log
        self._early: list[TurnEvent] = []
        self._renderer: Renderer | None = None
        self._writer: SseWriter | None = None

    def refusal(self) -> ErrorInfo | None:
        """The error of a turn that failed before it said anything: it can still be the response's status."""
        return failure_of(self._early[0]) if self._early else None

    def attach(self, renderer: Renderer, writer: SseWriter) -> None:
        """From now on events go out as they come."""
        self._renderer = renderer
        self._writer = writer
        early, self._early = self._early, []
        if early:
            self._render(early)

    def push(self, events: list[TurnEvent]) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        self.ended = self._record.batch(events)
        if self._writer is None:
            self._early += events
        else:
            self._render(events)

    def _render(self, events: list[TurnEvent]) -> None:
        renderer, writer = self._renderer, self._writer
        if renderer is None or writer is None:
            return
        try:
            writer.write(renderer.events(events))
        except Exception:
            # The caller hands out the events of many turns: this one's trouble must not become theirs.
            self._log.exception("turn.render_failed")
            self._record.outcome = "internal"
            writer.write(renderer.error(ErrorInfo(ErrorKind.ENGINE, "Internal server error")))
            writer.close()
        if self.ended:
            writer.close()


class DocumentSink:
    """A `TurnSink` that keeps the events until there are all."""

    def __init__(self, record: TurnRecord) -> None:
        self.ended = False
        self.events: list[TurnEvent] = []
        self.done = asyncio.Event()
        self._record = record

    def push(self, events: list[TurnEvent]) -> None:
        """See `TurnSink.push`."""
        if self.ended or not events:
            return
        self.events += events
        self.ended = self._record.batch(events)
        if self.ended:
            self.done.set()
