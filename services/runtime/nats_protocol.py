"""NATS's client protocol as pure functions of bytes: what the server says, and what is said to it.

The wire format is that of the NATS documentation ("Client Protocol"): lines that end in CRLF, payloads whose length
their line tells, headers by NATS ADR-4.
"""

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

MAX_LINE = 64 * 1024
"""Bytes of a line. The longest is INFO, with an address for each server of a cluster."""
NO_RESPONDERS = 503
"""The status of an answer from the server itself: nobody listens on the subject (NATS ADR-4)."""

PING = b"PING\r\n"
PONG = b"PONG\r\n"
_CRLF = b"\r\n"
_STATUS_LINE = b"NATS/1.0"
_MESSAGES = frozenset((b"MSG", b"HMSG"))


class NatsProtocolError(Exception):
    """What came is no NATS protocol. The connection is of no use any more."""


class Delivered(Struct, frozen=True, gc=False):
    """A message for the subscription `sid`. `reply`, `headers`: b"" where there are none."""

    sid: bytes
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class Info(Struct, frozen=True, omit_defaults=True):
    """What the server tells of itself when a connection opens, and when that changes."""

    max_payload: int = 1024 * 1024
    """Bytes of a message that it takes, headers included."""
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    """To be signed by whoever comes with a key."""
    connect_urls: list[str] = []
    """host:port of the cluster's servers."""
    ldm: bool = False
    """Lame duck mode: this server is about to close its connections."""


class Refused(Struct, frozen=True):
    """The server's -ERR, without its quotes."""

    reason: str


class Pinged(Struct, frozen=True):
    """The server wants a PONG."""


class Ponged(Struct, frozen=True):
    """The answer to the oldest PING that has none yet."""


_Head: TypeAlias = tuple[bytes, bytes, bytes, int, int]
Said: TypeAlias = Delivered | Info | Refused | Pinged | Ponged

_PINGED, _PONGED = Pinged(), Ponged()
_decode_info = msgspec.json.Decoder(Info).decode


class Parser:
    """Takes the server's bytes in whatever pieces they come."""

    __slots__ = ("_head", "_missing", "_parts", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        """The beginning of a line."""
        self._head: _Head | None = None
        """Of the message whose payload has begun."""
        self._parts: list[bytes] = []
        self._missing = 0
        """Bytes that its payload lacks, the closing CRLF included."""

    def feed(self, data: bytes) -> list[Said]:
        """Everything that `data` completes, in order.

        Each payload is copied once, or twice where it came in pieces.

        Raises:
            NatsProtocolError: the rest of what came makes no sense; nothing may be fed after it.
        """
        said: list[Said] = []
        at = 0
        if self._head is not None:
            at = self._continued(data, said)
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        while (end := data.find(_CRLF, at)) >= 0:
            words = data[at:end].split()
            start = end + 2
            if words and words[0] in _MESSAGES:
                sid, subject, reply, header_size, size = head = _head(words)
                at = start + size + 2
                if at > len(data):
                    self._head, self._parts, self._missing = head, [data[start:]], at - len(data)
                    return said
                if data[at - 2 : at] != _CRLF:
                    raise NatsProtocolError("a payload has another length than it said")
                body = start + header_size
                said.append(Delivered(sid, subject, reply, data[start:body], data[body : at - 2]))
            else:
                if (told := _control(data[at:end])) is not None:
                    said.append(told)
                at = start
        if len(data) - at > MAX_LINE:
            raise NatsProtocolError(f"a line of more than {MAX_LINE} bytes")
        self._rest = data[at:]
        return said

    def _continued(self, data: bytes, said: list[Said]) -> int:
        """Goes on with the payload that has begun; returns where the bytes behind it begin."""
        assert self._head is not None
        parts, size = self._parts, len(data)
        if size < self._missing:
            parts.append(data)
            self._missing -= size
            return size
        taken = self._missing
        last = data[:taken]
        if taken < 2:  # the CRLF itself is in two pieces
            last = parts.pop() + last
        if not last.endswith(_CRLF):
            raise NatsProtocolError("a payload has another length than it said")
        parts.append(last[:-2])
        sid, subject, reply, header_size, _ = self._head
        body = b"".join(parts)
        said.append(Delivered(sid, subject, reply, body[:header_size], body[header_size:]))
        self._head, self._parts = None, []
        return taken


def _head(words: list[bytes]) -> _Head:
    """sid, subject, reply, bytes of headers, bytes of headers and payload."""
    sizes = 1 if words[0] == b"MSG" else 2
    replies = len(words) - 3 - sizes
    size, header_size = words[-1], words[-2] if sizes == 2 else b"0"
    if replies not in (0, 1) or not size.isdigit() or not header_size.isdigit():
        raise NatsProtocolError(f"not understood: {b' '.join(words)[:80]!r}")
    head = words[2], words[1], words[3] if replies else b"", int(header_size), int(size)
    if head[3] > head[4]:
        raise NatsProtocolError(f"headers longer than the message: {b' '.join(words)[:80]!r}")
    return head


def _control(line: bytes) -> Said | None:
    word, _, rest = line.partition(b" ")
    if word == b"PING":
        return _PINGED
    if word == b"PONG":
        return _PONGED
    if word == b"INFO":
        try:
            return _decode_info(rest)
        except msgspec.MsgspecError as error:
            raise NatsProtocolError(f"INFO cannot be read: {error}") from None
    if word == b"-ERR":
        return Refused(rest.decode(errors="replace").strip(" '"))
    if word == b"+OK":
        return None
    raise NatsProtocolError(f"not understood: {line[:80]!r}")


def status_of(headers: bytes) -> int:
    """The status in a message's headers; 0: they have none."""
    words = headers[: headers.find(_CRLF)].split(maxsplit=2)
    return int(words[1]) if len(words) > 1 and words[0] == _STATUS_LINE and words[1].isdigit() else 0


def connect(options: dict[str, Any]) -> bytes:
    """CONNECT: who this client is."""
    return b"CONNECT " + msgspec.json.encode(options) + _CRLF


def subscribe(sid: bytes, subject: str, queue: str = "") -> bytes:
    """SUB. Raises ValueError where a name would not stay one word."""
    name = f"{_word(subject)} {_word(queue)}" if queue else _word(subject)
    return b"SUB %b %b\r\n" % (name.encode(), sid)


def unsubscribe(sid: bytes) -> bytes:
    """UNSUB: no more messages for this subscription."""
    return b"UNSUB %b\r\n" % sid


def publish(subject: str, size: int, reply: str = "") -> bytes:
    """The line before a payload of `size` bytes. Raises ValueError where a name would not stay one word."""
    name = f"{_word(subject)} {_word(reply)}" if reply else _word(subject)
    return f"PUB {name} {size}\r\n".encode()


def publish_with_headers(subject: str, size: int, headers: bytes, reply: str = "") -> bytes:
    """The line and the headers before a payload of `size` bytes. Raises as `publish`."""
    name = f"{_word(subject)} {_word(reply)}" if reply else _word(subject)
    return f"HPUB {name} {len(headers)} {len(headers) + size}\r\n".encode() + headers


def encode_headers(headers: dict[str, str]) -> bytes:
    """Headers by NATS ADR-4. Raises ValueError where one would not stay on its line."""
    lines = [_STATUS_LINE.decode()]
    for name, value in headers.items():
        if ":" in name or not (name + value).isprintable():
            raise ValueError(f"not a header: {name!r}: {value!r}")
        lines.append(f"{_word(name)}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _word(text: str) -> str:
    # A line end in a name would be a command of its own.
    if not text or " " in text or not text.isprintable():
        raise ValueError(f"not a name: {text!r}")
    return text
