"""A request that was read and converted, and the record of its response for the store."""

from dataclasses import dataclass

import msgspec
from msgspec import Raw

from services.frontend.apis.responses import wire_answers
from services.frontend.apis.responses.parse.body import DecodedRequest
from services.frontend.apis.responses.render.response_renderer import ResponseRenderer
from services.frontend.apis.responses.request import ResponsesRequest
from services.frontend.apis.responses.state.input_items import stored_items
from services.frontend.apis.responses.state.recording import EventPacker, NoPacker, StreamRecorder
from services.frontend.stored.record import StoredResponse
from services.frontend.turns.interfaces import RenderInfo


class InputItems:
    """The items of a request's own input, each with an id.

    They are made when they are first read: those of a small input after the answer, when no client
    waits.
    """

    def __init__(self, decoded: DecodedRequest, turn_id: str) -> None:
        self._decoded = decoded
        self._turn_id = turn_id
        self._items: list[Raw] | None = None

    def read(self) -> list[Raw]:
        """Returns the items; makes them the first time."""
        if self._items is None:
            self._items = stored_items(self._decoded, self._turn_id)
        return self._items


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
        packer = EventPacker() if is_kept else NoPacker()
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
