"""Whatever a client of the bus sends: the connection lives, the next message is handled, and the
log gets one line a second."""

import asyncio
import io
import time
from contextlib import suppress

import msgspec
import pytest

from schemas.control import Heartbeat
from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.nats.bus import Bus, Delivery
from services.runtime.observability.telemetry import open_log
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S

HEADERS = [b"", b"NATS/1.0", b"NATS/1.0 503 a\xff\r\nb: c\r\n\r\n", b"\xff" * 40]
TOKENS = [b"x", b"\xff\xfe", b"\x0b", b"\x00", b"\xed\xa0\x80", b"*"]
DATA = [b"", b"{", b"{}", b"\xff", b'"\xff"', b'{"x":' + b"[" * 100_000]


async def send(
    port: int, subject: bytes, data: bytes, headers: bytes = b"", reply: bytes = b""
) -> None:
    """Sends any bytes, over a connection of its own; returns when the server has read them, or has
    closed the connection because of them."""
    sizes = [len(data)] if not headers else [len(headers), len(headers) + len(data)]
    words = [b"HPUB" if headers else b"PUB", subject, reply, *(b"%d" % size for size in sizes)]
    line = b" ".join(filter(None, words))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
    writer.write(line + b"\r\n" + headers + data + b"\r\nPING\r\n")
    async with asyncio.timeout(LIMIT_S):
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"PONG\r\n")
    writer.close()


async def test_every_kind_of_garbage_leaves_the_connection_alone(nats: NatsServer) -> None:
    stream, handled, began = io.StringIO(), list[str](), time.monotonic()
    log = open_log(ServiceConfig(log_format="json"), stream)
    bus = Bus(
        BusConfig(nats_url=nats.url),
        name="test",
        inbox_prefix="_INBOX_test",
        log=log,
        on_fatal=pytest.fail,
    )
    bus.on_reconnect.append(lambda: pytest.fail("the connection broke"))

    def read(delivery: Delivery) -> None:
        handled.append(delivery.subject)
        msgspec.json.decode(delivery.data, type=Heartbeat)

    def fail(delivery: Delivery) -> None:
        handled.append(delivery.subject)
        raise ValueError(delivery.data[:20])

    await bus.connect()
    await bus.subscribe("t.read.*", read)
    await bus.subscribe("t.fail.*", fail)
    await bus.subscribe("t.echo", lambda delivery: delivery.reply(delivery.data))
    await bus.flush()
    for subject in (b"t.read.", b"t.fail."):
        for headers in HEADERS:
            for token in TOKENS:
                await send(nats.port, subject + token, b"x", headers, reply=b"t.echo")
        for data in DATA:
            await send(nats.port, subject + b"x", data)
            await send(nats.port, subject + b"x", data, reply=b"t.read.x")
    for token in TOKENS:
        await send(nats.port, b"t.read.x", b"x", b"", b"a." + token)
    assert await bus.request("t.echo", b"!", LIMIT_S) == b"!"
    assert len(handled) > 2 * len(DATA)
    lines = stream.getvalue().splitlines()
    assert len(lines) <= time.monotonic() - began + 1, lines[:5]
    await bus.close()
