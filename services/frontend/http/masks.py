"""Checks that the frames of a WebSocket client are masked (RFC 6455, 5.1). aiohttp does not check
it."""

from collections.abc import Callable
from typing import Any

_MASKED = 0x80
_LENGTH = 0x7F
_EXTRA = {126: 2, 127: 8}
"""Bytes of the extended length field, by the value of the short one."""
_SHORT_HEAD = 2
"""Bytes of a head without an extended length."""
_MASK_BYTES = 4


class MaskedFrames:
    """Passes bytes on to aiohttp's frame reader, up to the first frame without a mask."""

    def __init__(self, reader: Any, on_unmasked: Callable[[], None]) -> None:
        self._reader = reader
        self._on_unmasked = on_unmasked
        self._head = b""
        """The first bytes of a frame, until its length is known."""
        self._left = 0
        """Bytes of the current frame that have not arrived yet."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Reads the next bytes. Returns whether no more are accepted, and the unused ones."""
        if self._is_masked(data):
            result: tuple[bool, bytes] = self._reader.feed_data(data)
            return result
        self._on_unmasked()
        return True, b""

    def feed_eof(self) -> None:
        """Reports the end of the connection to the reader."""
        self._reader.feed_eof()

    def _is_masked(self, data: bytes) -> bool:
        """Follows the frames. Returns whether all heads that end in `data` have a mask."""
        position = 0
        while position < len(data):
            if self._left:
                step = min(self._left, len(data) - position)
                self._left -= step
                position += step
                continue
            missing = data[position : position + self._head_bytes() - len(self._head)]
            self._head += missing
            position += len(missing)
            if len(self._head) < _SHORT_HEAD:
                continue
            if not self._head[1] & _MASKED:
                return False
            if len(self._head) == self._head_bytes():
                self._left = _MASK_BYTES + self._payload_bytes()
                self._head = b""
        return True

    def _head_bytes(self) -> int:
        """Returns the size of the current head without its mask, as far as it is known."""
        if len(self._head) < _SHORT_HEAD:
            return _SHORT_HEAD
        return _SHORT_HEAD + _EXTRA.get(self._head[1] & _LENGTH, 0)

    def _payload_bytes(self) -> int:
        """Returns the length that a complete head has."""
        length = self._head[1] & _LENGTH
        if length in _EXTRA:
            return int.from_bytes(self._head[_SHORT_HEAD:])
        return length
