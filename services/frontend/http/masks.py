"""Checks that the frames of a WebSocket client are masked (RFC 6455, 5.1), which aiohttp does not."""

from collections.abc import Callable
from typing import Any

_MASKED = 0x80
_LENGTH = 0x7F
_EXTRA = {126: 2, 127: 8}
"""Bytes of a longer length, by what stands in its place."""
_MASK_BYTES = 4


class MaskedFrames:
    """Stands in front of aiohttp's frame reader, which gets no bytes from the first frame without a mask on."""

    def __init__(self, reader: Any, on_unmasked: Callable[[], None]) -> None:
        self._reader = reader
        self._on_unmasked = on_unmasked
        self._head = b""
        """The beginning of a frame whose length is not known yet."""
        self._left = 0
        """Bytes of the current frame that are still to come."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes the next bytes. Returns whether no more are accepted, and those that were not used."""
        if self._is_masked(data):
            used: tuple[bool, bytes] = self._reader.feed_data(data)
            return used
        self._on_unmasked()
        return True, b""

    def feed_eof(self) -> None:
        """Takes the end of the connection."""
        self._reader.feed_eof()

    def _is_masked(self, data: bytes) -> bool:
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            size = 2 if len(self._head) < 2 else 2 + _EXTRA[self._head[1] & _LENGTH]
            piece = data[at : at + size - len(self._head)]
            self._head += piece
            at += len(piece)
            if len(self._head) < 2:
                continue
            if not self._head[1] & _MASKED:
                return False
            length = self._head[1] & _LENGTH
            if len(self._head) == 2 + _EXTRA.get(length, 0):
                self._left = _MASK_BYTES + (int.from_bytes(self._head[2:]) if length in _EXTRA else length)
                self._head = b""
        return True
