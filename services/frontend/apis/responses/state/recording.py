"""Records the stream of a response while it is sent."""

from collections.abc import Sequence

import zstandard
from typing_extensions import override

from schemas.errors import ErrorInfo
from schemas.events import Prepared, TurnEvent
from services.frontend.apis.responses.render.response_renderer import ResponseRenderer
from services.frontend.turns.interfaces import Renderer

_CHUNK_BYTES = 64 * 1024
"""The most bytes that a recording keeps uncompressed."""


class EventPacker:
    """Receives a stream while it is sent. This one keeps nothing, of a response that is not
    stored."""

    def add(self, data: bytes) -> None:
        """Adds the next bytes of the stream."""

    def pack(self) -> bytes:
        """The stream so far, for `unpack_events`."""
        return b""


class ZstdPacker(EventPacker):
    """Compresses a stream while it is sent. Events repeat each other, so they shrink to a tenth or
    less."""

    def __init__(self) -> None:
        # A copy, because each result of zstandard keeps a buffer of its uncompressed size.
        self._packed = bytearray()
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    @override
    def add(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _CHUNK_BYTES:
            self._compress()

    @override
    def pack(self) -> bytes:
        if self._pending:
            self._compress()
        return bytes(self._packed)

    def _compress(self) -> None:
        self._packed += zstandard.ZstdCompressor(level=1).compress(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0


def unpack_events(packed: bytes) -> bytes:
    """The stream that a `ZstdPacker` compressed."""
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
    def render(self, events: Sequence[TurnEvent], choice: int = 0) -> bytes:
        return self._record(self.stream.render(events, choice))

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
