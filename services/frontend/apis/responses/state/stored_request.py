"""Stores the response to an HTTP request before the client has the end: its next request may
continue this response."""

from collections.abc import Sequence

from typing_extensions import override

from schemas.events import Failed, Finish, TurnEvent
from services.frontend.apis.responses.render.response_renderer import (
    ResponseRenderer,
    ResponsesCollector,
)
from services.frontend.apis.responses.state.accepted_request import AcceptedRequest
from services.frontend.apis.responses.state.recording import EventPacker, StreamRecorder
from services.frontend.stored.memory import MemoryStore
from services.frontend.turns.interfaces import ParsedRequest, RenderInfo
from services.runtime.observability.telemetry import FilteringBoundLogger


class StoredRequest(ParsedRequest, frozen=True, kw_only=True):
    """A request with a response that is also stored."""

    accepted: AcceptedRequest
    store: MemoryStore
    log: FilteringBoundLogger

    @classmethod
    def of(
        cls, accepted: AcceptedRequest, store: MemoryStore, log: FilteringBoundLogger
    ) -> "StoredRequest":
        """Makes it of a request that was accepted."""
        request = accepted.request
        return cls(
            conversation=request.conversation,
            stream=request.stream,
            notes=request.notes,
            may_shorten=request.may_shorten,
            accepted=accepted,
            store=store,
            log=log,
        )

    @override
    def renderer(self, answer: RenderInfo) -> "StoredStream":
        return StoredStream(self.accepted.request.renderer(answer), self)

    @override
    def collector(self, answer: RenderInfo) -> "StoredCollector":
        return StoredCollector(self.accepted.request.renderer(answer), self)

    def keep(self, stream: ResponseRenderer, recording: bytes = b"") -> None:
        """Stores the response. `recording`: its stream, compressed."""
        self.store.put(self.accepted.record(stream, recording))


class StoredStream(StreamRecorder):
    """Renders the stream of a response, and stores the response when its turn has ended."""

    def __init__(self, stream: ResponseRenderer, request: StoredRequest) -> None:
        super().__init__(stream, EventPacker())
        self._request = request

    @override
    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        rendered = super().render(events, choice)
        if isinstance(events[-1], Finish | Failed):
            self._keep()
        return rendered

    def _keep(self) -> None:
        try:
            self._request.keep(self.stream, self.recording())
        except Exception:  # the client must still get the end of its answer
            self._request.log.exception("turn.end_failed")


class StoredCollector(ResponsesCollector):
    """Collects a response, and stores it before it becomes a document."""

    def __init__(self, stream: ResponseRenderer, request: StoredRequest) -> None:
        super().__init__(stream)
        self._request = request

    @override
    def body(self) -> bytes:
        document = super().body()
        self._request.keep(self.stream)
        return document
