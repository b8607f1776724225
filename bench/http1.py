"""Parses HTTP/1.1 responses: status, headers, body without its chunked coding. Pure.

It makes two searches and one slice per chunk, because the client must cost less than what it
measures.
"""

MAX_HEAD_BYTES = 64 * 1024

_HEAD, _LENGTH, _SIZE, _LINE_END, _TRAILER, _DONE = range(6)
"""The head; a body of known length; a chunk's size, the line end after its payload; the lines after
the last chunk; the end."""


class BadResponse(Exception):
    """The server's bytes are not an HTTP/1.1 response, or the response is cut off."""


class ResponseParser:
    """Parses one response. `reset` prepares it for the next one on the same connection."""

    __slots__ = ("_left", "_rest", "_state", "headers", "status")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Starts a new response."""
        self._state = _HEAD
        self._rest = b""
        self._left = 0
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
        if self._state == _LENGTH:
            self._left -= len(data)
            if self._left < 0:
                raise BadResponse(f"{-self._left} bytes after the end of the response")
            if not self._left:
                self._state = _DONE
            return data
        if self._state in (_SIZE, _LINE_END, _TRAILER):
            return self._chunks(data)
        if data:
            raise BadResponse(f"{len(data)} bytes after the end of the response")
        return b""

    def end(self) -> None:
        """Records that the server closed the connection. Raises BadResponse if the response is
        incomplete."""
        if self._state != _DONE:
            place = "in mid-response" if self.status else "without an answer"
            raise BadResponse(f"the connection was closed {place}")

    def _head(self, data: bytes) -> bytes:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES:
                raise BadResponse(f"no end of the headers within {MAX_HEAD_BYTES} bytes")
            self._rest = data
            return b""
        self._rest = b""
        self.status, self.headers = _parse_head(data[:end])
        if self.headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._state = _SIZE
        else:
            self._left = _number(self.headers.get(b"content-length", b"0"), 10)
            self._state = _LENGTH if self._left else _DONE
        return data[end + 4 :]

    def _chunks(self, data: bytes) -> bytes:
        data = self._rest + data
        self._rest = b""
        at = 0
        payload: list[bytes] = []
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self._rest = data[at:]
                if len(self._rest) > MAX_HEAD_BYTES:
                    raise BadResponse("a chunk without a size")
                break
            line, at = data[at:line_end], line_end + 2
            if self._state == _DONE or (self._state == _LINE_END and line):
                raise BadResponse("bytes after the end of a chunk or of the response")
            if self._state == _LINE_END:
                self._state = _SIZE
            elif self._state == _TRAILER:
                self._state = _TRAILER if line else _DONE
            else:
                self._left = _number(line.partition(b";")[0], 16)
                self._state = _LINE_END if self._left else _TRAILER
        if self._state == _DONE and self._rest:
            raise BadResponse(f"{len(self._rest)} bytes after the end of the response")
        return payload[0] if len(payload) == 1 else b"".join(payload)


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise BadResponse(f"not an HTTP/1.1 status line: {first[:80]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return int(words[1]), headers


def _number(digits: bytes, base: int) -> int:
    try:
        return int(digits.strip(), base)
    except ValueError:
        raise BadResponse(f"not a length: {digits[:40]!r}") from None
