"""Records a rendered stream in compressed form, so that it can be sent again."""

import zstandard

_CHUNK_BYTES = 64 * 1024
"""What a recording holds uncompressed, at most."""


class EventPacker:
    """Compresses a stream while it is sent. Events repeat each other: a tenth of their size or less is left."""

    def __init__(self) -> None:
        self._packed = bytearray()  # a copy: the buffer of each result of zstandard keeps its uncompressed size
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, data: bytes) -> None:
        """Adds the next bytes of the stream."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= _CHUNK_BYTES:
            self._pack()

    def packed(self) -> bytes:
        """The stream so far, for `unpack_events`."""
        if self._pending:
            self._pack()
        return bytes(self._packed)

    def _pack(self) -> None:
        self._packed += zstandard.ZstdCompressor(level=1).compress(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0


def unpack_events(packed: bytes) -> bytes:
    """The stream that an `EventPacker` compressed."""
    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
        return reader.read()
