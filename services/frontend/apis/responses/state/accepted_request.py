"""A request that was read and converted, with what stores its response.

The response to an HTTP request is stored before the client has the end, because the client's next
request may continue it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw
from typing_extensions import override

from schemas.errors import ErrorInfo
from schemas.events import Failed, Finish, TurnEvent
from services.frontend.apis.responses import wire_answers
from services.frontend.apis.responses.render.response_renderer import (
    ResponseRenderer,
    ResponsesCollector,
)
from services.frontend.apis.responses.request import ResponsesRequest
from services.frontend.apis.responses.state.input_items import InputItems
from services.frontend.apis.responses.state.recording import EventPacker, StreamRecorder, ZstdPacker
from services.frontend.stored.memory import MemoryStore
from services.frontend.stored.record import StoredResponse
from services.frontend.turns.interfaces import ParsedRequest, RenderInfo
from services.runtime.observability.telemetry import FilteringBoundLogger


@dataclass(frozen=True)
class AcceptedRequest:
    """A request, with the data for storing its response."""

    request: ResponsesRequest
    id: str
    """The turn's id."""
    tenant: str | None
    input_items: InputItems
    compacted: list[Raw] | None = None
    """Set where the context was compacted: the items that replace everything before the turn's own
    output."""

    def recorder(self, answer: RenderInfo) -> StreamRecorder:
        """Returns a renderer that records its stream if the response is kept: clients follow a
        background response even if they do not ask to store it."""
        decoded = self.request.decoded
        is_kept = decoded.store or decoded.body.background
        packer = ZstdPacker() if is_kept else EventPacker()
        return StreamRecorder(self.request.renderer(answer), packer)

    def record(
        self,
        stream: ResponseRenderer,
        recording: bytes = b"",
        *,
        status: wire_answers.Status | None = None,
        owner: str = "",
    ) -> StoredResponse:
        """Makes the record of the response at this moment.

        Args:
            recording: the stream, compressed.
            status: overrides the status of the stream.
            owner: the process in which the response still runs.
        """
        body = self.request.decoded.body
        document = stream.state.document(status)
        output = list(stream.state.items)
        return StoredResponse(
            id=document.id,
            created=document.created_at,
            response=Raw(msgspec.json.encode(document)),
            status=document.status,
            tenant=self.tenant,
            previous=body.previous_response_id,
            input=self.input_items.read(),
            output=output,
            events=recording,
            background=bool(body.background),
            context=self._context(output),
            owner=owner,
        )

    def _context(self, output: list[Raw]) -> list[Raw] | None:
        """The items with which a chain starts at this response; None if it was not compacted."""
        if self.compacted is None:
            return None
        summary_items = len(self.request.shape.before)
        return [*self.compacted, *output[summary_items:]]


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

    def keep(self, stream: ResponseRenderer, recording: Callable[[], bytes] = bytes) -> None:
        """Stores the response. `recording`: returns its stream, compressed."""
        try:
            self.store.put(self.accepted.record(stream, recording()))
        except Exception:  # the client must still get its answer, or the end of it
            self.log.exception("turn.end_failed")


class StoredStream(StreamRecorder):
    """Renders the stream of a response, and stores the response when its turn has ended."""

    def __init__(self, stream: ResponseRenderer, request: StoredRequest) -> None:
        super().__init__(stream, ZstdPacker())
        self._request = request

    @override
    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        rendered = super().render(events, choice)
        if isinstance(events[-1], Finish | Failed):
            self._request.keep(self.stream, self.recording)
        return rendered

    @override
    def error(self, info: ErrorInfo) -> bytes:
        rendered = super().error(info)
        if rendered:  # else the stream had its end
            self._request.keep(self.stream, self.recording)
        return rendered


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
