"""Serves canned output with a minimal asyncio server."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

Answer: TypeAlias = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Answers one request. Arguments: its body and the writer."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nrequest-id: req_stub\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(text: str) -> bytes:
    """A text delta of the Messages API."""
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"%b"}}\n\n' % text.encode()
    )


def opening() -> bytes:
    """Returns the events before the first delta."""
    return (
        b'event: message_start\ndata: {"type":"message_start",'
        b'"message":{"id":"msg_stub","usage":{"input_tokens":7}}}\n\n'
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n'
    )


def closing(tokens: int) -> bytes:
    """Returns the events after the last delta."""
    usage = b'{"input_tokens":7,"cache_read_input_tokens":3,"output_tokens":%d}' % tokens
    return (
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b"event: message_delta\ndata: "
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":%b}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n' % usage
    )


def steady(tokens: int, batch: int) -> Answer:
    """Answers every request with `tokens` deltas, `batch` of them in a write, without a pause."""
    event = chunk(delta("word "))
    writes = [event * min(batch, tokens - at) for at in range(0, tokens, batch)]

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(opening()))
        for piece in writes:
            writer.write(piece)
            await asyncio.sleep(0)
        writer.write(chunk(closing(tokens)) + LAST_CHUNK)

    return answer


async def send(writer: asyncio.StreamWriter, events: Iterable[bytes]) -> None:
    """A whole stream: each item is a chunk of its own."""
    writer.write(STREAM_HEAD)
    for event in events:
        writer.write(chunk(event))
    writer.write(LAST_CHUNK)
    await writer.drain()


async def serve(answer: Answer, port: int = 0) -> asyncio.Server:
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

    return await asyncio.start_server(connected, "127.0.0.1", port)


def port_of(server: asyncio.Server) -> int:
    """Returns the port of a server."""
    return int(server.sockets[0].getsockname()[1])
