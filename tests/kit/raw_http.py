"""Bytes to a server and back, for what no HTTP client sends."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.bodies import messages
from tests.kit.waiting import LIMIT_S

CHUNKED = "Transfer-Encoding: chunked"
LAST_CHUNK = b"0\r\n\r\n"
BODY = json.dumps(messages()).encode()


def get(
    path: str = "/version", *headers: str, host: str = "localhost", version: str = "1.1"
) -> bytes:
    lines = [f"GET {path} HTTP/{version}", f"Host: {host}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def post(
    body: bytes = BODY, *headers: str, path: str = "/v1/messages", sized: bool = True
) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *headers]
    if sized:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


@asynccontextmanager
async def connected(
    port: int, data: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which these bytes are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        yield reader, writer
    finally:
        writer.close()


class Answer:
    """One response, with those of status 100 before it left out."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def message(self) -> str:
        found: str = json.loads(self.body)["error"]["message"]
        return found


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The next response, which has a length."""
    async with asyncio.timeout(LIMIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        number = int(status.split()[1])
        if number == 100:
            return await read_answer(reader)
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return Answer(
            number, headers, await reader.readexactly(int(headers.get("content-length", "0")))
        )


async def answers_to(port: int, data: bytes, count: int | None = None) -> list[Answer]:
    """Sends bytes; returns `count` responses, or all until the server closes the connection."""
    found: list[Answer] = []
    async with connected(port, data) as (reader, _):
        try:
            while count is None or len(found) < count:
                found.append(await read_answer(reader))
        except asyncio.IncompleteReadError as end:
            if end.partial or count is not None:
                raise
    return found


async def answer_to(port: int, data: bytes) -> Answer:
    """The one response to these bytes."""
    (found,) = await answers_to(port, data, 1)
    return found


def frame(payload: bytes, opcode: int = 1, *, masked: bool = True) -> bytes:
    """A WebSocket frame (RFC 6455, 5.2)."""
    size = len(payload)
    mark = 0x80 if masked else 0
    if size < 126:
        length = bytes([mark | size])
    elif size < 65536:
        length = bytes([mark | 126]) + size.to_bytes(2)
    else:
        length = bytes([mark | 127]) + size.to_bytes(8)
    head = bytes([0x80 | opcode]) + length
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


def upgrade(*headers: str, host: str = "localhost") -> bytes:
    """The request that opens the Responses WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    wanted = [
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
    ]
    return get("/v1/responses", *wanted, *headers, host=host)


class RawSocket:
    """The client's side of a WebSocket, of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, behind: bytes = b"") -> "RawSocket":
        """`behind`: sent with the upgrade."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(upgrade() + behind)
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return cls(reader, writer)

    async def send(self, *pieces: bytes) -> None:
        """Sends each piece in a write of its own."""
        for piece in pieces:
            self._writer.write(piece)
            await asyncio.sleep(0)

    async def receive(self) -> Any:
        """The JSON of the server's next frame, or the code with which it closes the connection."""
        async with asyncio.timeout(LIMIT_S):
            opcode, size = await self._reader.readexactly(2)
            if size >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
            payload = await self._reader.readexactly(size)
        if opcode & 0x0F != 8:
            return json.loads(payload)
        self._writer.close()
        return int.from_bytes(payload[:2])
