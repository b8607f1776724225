"""Records the stream of a response while it is sent, and makes its record for the store."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import zstandard
from msgspec import Raw
from typing_extensions import override

from schemas.errors import ErrorInfo
from schemas.events import Failed, Finish, Prepared, TurnEvent
from services.frontend.apis.responses import wire_answers
from services.frontend.apis.responses.dialect import ResponsesRequest
from services.frontend.apis.responses.render.response_renderer import ResponseRenderer
from services.frontend.apis.responses.request.body import DecodedRequest
from services.frontend.apis.responses.state.input_items import stored_items
from services.frontend.stored.memory import MemoryStore
from services.frontend.stored.record import StoredResponse
from services.frontend.turns.interfaces import AnswerInfo, Renderer
from services.runtime.observability.telemetry import FilteringBoundLogger

_CHUNK_BYTES = 64 * 1024
"""The most bytes that a recording keeps uncompressed."""


class EventPacker:
    """Compresses a stream while it is sent. Events repeat each other, so they shrink to a tenth or
    less."""

    def __init__(self) -> None:
        # A copy, because each result of zstandard keeps a buffer of its uncompressed size.
        self._packed = bytearray()
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, data: bytes) -> None:
        """Adds the next bytes of the stream."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _CHUNK_BYTES:
            self._pack()

    def pack(self) -> bytes:
        """The stream so far, for `unpack_events`."""
        if self._pending:
            self._pack()
        return bytes(self._packed)

    def _pack(self) -> None:
        self._packed += zstandard.ZstdCompressor(level=1).compress(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0


class NoPacker(EventPacker):
    """Keeps nothing, of a response that is not stored."""

    @override
    def add(self, data: bytes) -> None:
        pass


def unpack_events(packed: bytes) -> bytes:
    """The stream that an `EventPacker` compressed."""
    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
        return reader.read()


class StreamRecorder(Renderer):
    """Renders a stream and keeps a compressed copy of it."""

    def __init__(self, stream: ResponseRenderer, packer: EventPacker) -> None:
        self.stream = stream
        self._packer = packer

    @override
    def start(self, prepared: Sequence[Prepared]) -> bytes:
        return self._record(self.stream.start(prepared))

    @override
    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        return self._record(self.stream.events(events, choice))

    @override
    def error(self, info: ErrorInfo) -> bytes:
        return self._record(self.stream.error(info))

    def break_off(self) -> bytes:
        """Ends the output of a cancelled turn, as the stream does."""
        return self._record(self.stream.break_off())

    def recording(self) -> bytes:
        """The stream so far, for `unpack_events`."""
        return self._packer.pack()

    def _record(self, data: bytes) -> bytes:
        if data:
            self._packer.add(data)
        return data


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

    def recorder(self, answer: AnswerInfo) -> StreamRecorder:
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


class StoredStream(StreamRecorder):
    """Renders the stream of an HTTP answer, and stores the response when its turn has ended: before
    the client gets the end, because its next request may continue this response."""

    def __init__(
        self,
        stream: ResponseRenderer,
        accepted: AcceptedRequest,
        store: MemoryStore,
        log: FilteringBoundLogger,
    ) -> None:
        super().__init__(stream, EventPacker())
        self._accepted = accepted
        self._store = store
        self._log = log

    @override
    def events(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        rendered = super().events(events, choice)
        if isinstance(events[-1], Finish | Failed):
            self._keep()
        return rendered

    def _keep(self) -> None:
        try:
            self._store.put(self._accepted.record(self.stream, self.recording()))
        except Exception:  # the client must still get the end of its answer
            self._log.exception("turn.end_failed")
