"""Parses HTTP/1.1 responses: status, headers, body without its chunked coding. Pure.

It makes two searches and one slice per chunk, because the client must cost less than what it
measures.
"""

MAX_HEAD_BYTES = 64 * 1024
MAX_LINE_BYTES = 4096

_HEAD, _LENGTH, _CHUNKS, _TRAILER, _TO_CLOSE, _DONE = range(6)
_BODILESS = frozenset({204, 304})


class BadResponse(Exception):
    """The server's bytes are not an HTTP/1.1 response, or the response is cut off."""


class ResponseParser:
    """Parses one response. `reset` prepares it for the next one on the same connection."""

    __slots__ = ("_left", "_line_end_missing", "_rest", "_state", "headers", "status")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts a new response."""
        self._state = _HEAD
        self._rest = b""
        self._left = 0
        self._line_end_missing = False
        """A chunk's payload is read, the line end after it is not."""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """Names in lower case; of several with one name, the last one. Complete as soon as `status`
        is set."""

    @property
    def complete(self) -> bool:
        """Whether the whole response was read."""
        return self._state == _DONE

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow on this connection."""
        return self.complete and self.headers.get(b"connection", b"").lower() != b"close"

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes of the body in `data`. Raises BadResponse."""
        if self._state == _HEAD:
            data = self._head(data)
        if self._state == _CHUNKS:
            return self._chunks(data)
        if self._state == _LENGTH:
            return self._counted(data)
        if self._state == _TRAILER:
            self._trailer(data)
            return b""
        if self._state == _DONE and data:
            raise BadResponse(f"{len(data)} bytes after the end of the response")
        return data if self._state == _TO_CLOSE else b""

    def end(self) -> None:
        """Records that the server closed the connection. Raises BadResponse if the response is
        incomplete."""
        if self._state == _TO_CLOSE:
            self._state = _DONE
        elif self._state != _DONE:
            raise BadResponse(
                "the connection was closed "
                + ("in mid-response" if self.status else "without an answer")
            )

    def _head(self, data: bytes) -> bytes:
        data = self._rest + data
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise BadResponse(f"no end of the headers within {MAX_HEAD_BYTES} bytes")
                self._rest = data
                return b""
            status, headers = _parse_head(data[:end])
            data = data[end + 4 :]
            if status >= 200:  # not an interim response
                break
        self._rest = b""
        self.status, self.headers = status, headers
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._state = _CHUNKS
        elif status in _BODILESS:
            self._state = _DONE
        elif b"content-length" in headers:
            self._left = _number(headers[b"content-length"], 10)
            self._state = _LENGTH if self._left else _DONE
        else:
            self._state = _TO_CLOSE
        return data

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise BadResponse(f"{-self._left} bytes after the end of the response")
        if not self._left:
            self._state = _DONE
        return data

    def _chunks(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = 0, len(data)
        payload: list[bytes] = []
        while at < end:
            if self._left:
                piece = data[at : at + self._left]
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._line_end_missing = not self._left
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self._rest = data[at:]
                if len(self._rest) > MAX_LINE_BYTES:
                    raise BadResponse("a chunk without a size")
                break
            line, at = data[at:line_end], line_end + 2
            if self._line_end_missing:
                if line:
                    raise BadResponse("a chunk is longer than it said")
                self._line_end_missing = False
                continue
            self._left = _number(line.partition(b";")[0], 16)
            if not self._left:
                self._state = _TRAILER
                self._trailer(data[at:])
                break
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _trailer(self, data: bytes) -> None:
        data = self._rest + data
        while (end := data.find(b"\r\n")) > 0:
            data = data[end + 2 :]
        if end < 0:
            self._rest = data
            if len(data) > MAX_LINE_BYTES:
                raise BadResponse("no end of the trailers")
            return
        self._state, self._rest = _DONE, b""
        if len(data) > 2:
            raise BadResponse(f"{len(data) - 2} bytes after the end of the response")


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise BadResponse(f"not an HTTP/1.1 status line: {first[:80]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadResponse(f"not a header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return int(words[1]), headers


def _number(digits: bytes, base: int) -> int:
    try:
        number = int(digits.strip(), base)
    except ValueError:
        raise BadResponse(f"not a length: {digits[:40]!r}") from None
    if number < 0:
        raise BadResponse(f"not a length: {digits[:40]!r}")
    return number
