"""Serves canned output of the Messages API."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from bench.client import Target

Answer: TypeAlias = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Answers one request. Arguments: its body and the writer."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
OPENING = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_stub"}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n'
)
"""The events before the first delta."""


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(text: str) -> bytes:
    """A text delta."""
    data = b'{"type":"content_block_delta","index":0,"delta":{"text":"%b"}}' % text.encode()
    return b"event: content_block_delta\ndata: %b\n\n" % data


def closing(tokens: int) -> bytes:
    """Returns the events after the last delta."""
    usage = b'{"input_tokens":7,"cache_read_input_tokens":3,"output_tokens":%d}' % tokens
    return (
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","usage":%b}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n' % usage
    )


async def send(writer: asyncio.StreamWriter, events: Iterable[bytes]) -> None:
    """A whole stream: each item is a chunk of its own."""
    writer.write(STREAM_HEAD + b"".join(map(chunk, events)) + LAST_CHUNK)
    await writer.drain()


async def serve(answer: Answer) -> tuple[asyncio.Server, Target]:
    """Listens on loopback. Connections are kept until the client closes them."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                await answer(await reader.readexactly(int(found[1]) if found else 0), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    return server, Target("127.0.0.1", int(server.sockets[0].getsockname()[1]))
