"""A response as it is kept: enough to show it again, to replay its stream, and to go on from it."""

import re
from collections.abc import Iterator

import msgspec
import zstandard
from msgspec import Raw, Struct

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""The states in which a response stays."""
_OVERHEAD_BYTES = 512
_PIECE_BYTES = 64 * 1024
"""What a stream that goes on holds unpacked."""
_PER_VALUE_BYTES = 120
"""What Python and its containers take for an entry and for each value in it."""


class StoredResponse(Struct, frozen=True, omit_defaults=True):
    """One response. Nothing in it changes; a state that follows is a new record."""

    id: str
    created: float
    """Unix time in seconds."""
    response: Raw
    """The Response object."""
    status: str
    tenant: str | None = None
    """Whose it is: for anybody else it is not there."""
    previous: str | None = None
    """The response that this one goes on from."""
    input: list[Raw] = []
    """The items of its own request, each with an id; what came before is in `previous`."""
    output: list[Raw] = []
    events: bytes = b""
    """Its stream as it was sent, packed (`EventPacker`); empty if it had none."""
    background: bool = False
    context: list[Raw] | None = None
    """Set where it was compacted: all the items that a chain begins with here, instead of those before."""
    owner: str = ""
    """The process in which it runs, as long as it does."""

    @property
    def ended(self) -> bool:
        """Whether its state is its last."""
        return self.status in ENDED

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        values = (self.input, self.output, self.context or [])
        held = sum(len(bytes_of(raw)) + _PER_VALUE_BYTES for raws in values for raw in raws)
        return _OVERHEAD_BYTES + held + len(bytes_of(self.response)) + len(self.events)

    def items(self) -> Iterator[tuple[str, Raw]]:
        """Its own input and its output, each item with its id."""
        for raw in (*self.input, *self.output):
            yield item_id(raw), raw


def bytes_of(raw: Raw) -> memoryview:
    """A raw value's JSON, without a copy."""
    return memoryview(raw)


def item_id(raw: Raw) -> str:
    """The id of an item; "" where it has none."""
    return _named.decode(raw).id


def encode(record: StoredResponse) -> bytes:
    """The record as JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> StoredResponse | None:
    """The inverse of `encode`; None for what it did not make (another release's, say)."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None


def without_events(record: StoredResponse) -> StoredResponse:
    """The record without its stream: what is kept where there is no room for both."""
    return msgspec.structs.replace(record, events=b"")


def failed_view(record: StoredResponse) -> StoredResponse:
    """The record of a response whose process is gone, as it is shown."""
    document = msgspec.json.decode(record.response)
    error = {"code": "server_error", "message": "The server that ran this response is gone."}
    response = Raw(msgspec.json.encode(document | {"status": "failed", "error": error}))
    return msgspec.structs.replace(record, status="failed", response=response, owner="")


class EventPacker:
    """Takes a stream as it is sent and keeps it small: events repeat themselves, and take a tenth or less."""

    __slots__ = ("_packed", "_pending", "_pending_bytes")

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, data: bytes) -> None:
        """The next bytes of the stream."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _PIECE_BYTES:
            self._pack()

    def packed(self) -> bytes:
        """All of it so far, for `unpack_events`."""
        if self._pending:
            self._pack()
        return b"".join(self._packed)

    def _pack(self) -> None:
        self._packed.append(zstandard.ZstdCompressor(level=1).compress(b"".join(self._pending)))
        self._pending.clear()
        self._pending_bytes = 0


def unpack_events(packed: bytes) -> bytes:
    """The stream that an `EventPacker` took."""
    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
        return reader.read()


def response_of_item(id: str) -> str | None:
    """The response to which an item belongs, by an id that this server made."""
    match = _OWN_ID.fullmatch(id)
    return f"resp_{match[1]}" if match else None


class _Named(Struct):
    id: str = ""


_decoder = msgspec.json.Decoder(StoredResponse)
_named = msgspec.json.Decoder(_Named)
_OWN_ID = re.compile(r"[a-z]+_([0-9a-f]{24}).*")
