"""Whatever a client of the bus sends: the connection lives, the next message is handled, and the
log gets one line a second."""

import asyncio
import io
import time

import msgspec
import pytest

from schemas.control import Heartbeat
from services.runtime.bus import Bus, Delivery
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.observability.telemetry import open_log
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S

ACK = b'{"stream":"KV_tw_responses","seq":7}'
"""JetStream's answer to a writer, which has no headers. Any writer can have it sent to any
subject."""
HEADERS = [
    b"",
    b"NATS/1.0",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 503 a\xff\r\nb: c\r\n\r\n",
    b"NATS/1.0\r\n\xff\xff: \xff\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"\xff" * 40,
]
TOKENS = [b"x", b"\xff\xfe", b"\x0b", b"\x00", b"\x85", b"\xed\xa0\x80", b"*", b">"]
DATA = [b"", b"{", b"null", b"{}", ACK, b"\xff", b'"\xff"', b'{"x":' + b"[" * 100_000]


class RawPublisher:
    """A client of the bus that sends any bytes."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])

    async def open(self) -> "RawPublisher":
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=1 << 20
        )
        self._writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        return self

    async def send(
        self, subject: bytes, data: bytes, headers: bytes = b"", reply: bytes = b""
    ) -> None:
        """Sends a message; returns when the server has read it, or has closed the connection
        because of it."""
        head = b" ".join(filter(None, (b"HPUB" if headers else b"PUB", subject, reply)))
        sizes = (
            b"%d %d" % (len(headers), len(headers) + len(data)) if headers else b"%d" % len(data)
        )
        self._writer.write(head + b" " + sizes + b"\r\n" + headers + data + b"\r\nPING\r\n")
        async with asyncio.timeout(LIMIT_S):
            while (line := await self._reader.readline()) != b"PONG\r\n":
                if not line:
                    await self.open()
                    return

    def close(self) -> None:
        self._writer.close()


class Listening:
    """A bus with the log of a service, and with handlers as services have them."""

    def __init__(self, url: str) -> None:
        self.stream = io.StringIO()
        self.handled = 0
        self.reconnects = 0
        self._began = time.monotonic()
        log = open_log(ServiceConfig(log_format="json"), self.stream)
        self.bus = Bus(
            BusConfig(nats_url=url),
            name="test",
            inbox_prefix="_INBOX_test",
            log=log,
            on_fatal=pytest.fail,
        )
        self.bus.on_reconnect.append(self._reconnected)

    def _reconnected(self) -> None:
        self.reconnects += 1

    async def open(self) -> None:
        await self.bus.connect()
        await self.bus.subscribe("t.read.*", self._read)
        await self.bus.subscribe("t.fail.*", self._fail)
        await self.bus.subscribe("t.echo", lambda delivery: delivery.reply(delivery.data))
        await self.bus.flush()

    def _read(self, delivery: Delivery) -> None:
        self.handled += 1
        msgspec.json.decode(delivery.data, type=Heartbeat)

    def _fail(self, delivery: Delivery) -> None:
        self.handled += 1
        raise ValueError(delivery.data[:20])

    async def is_quiet(self) -> None:
        """What was sent before is handled, and the log has at most one line a second."""
        assert await self.bus.request("t.echo", b"!", LIMIT_S) == b"!"
        assert self.reconnects == 0, self.stream.getvalue()
        lines = self.stream.getvalue().splitlines()
        assert len(lines) <= time.monotonic() - self._began + 1, lines[:5]


async def test_every_kind_of_garbage_leaves_the_connection_alone(nats: NatsServer) -> None:
    service, publisher = Listening(nats.url), await RawPublisher(nats.url).open()
    await service.open()
    for subject in (b"t.read.", b"t.fail."):
        for headers in HEADERS:
            for token in TOKENS:
                await publisher.send(subject + token, b"x", headers, reply=b"t.echo")
        for data in DATA:
            await publisher.send(subject + b"x", data)
            await publisher.send(subject + b"x", data, reply=b"t.read.x")
    for token in TOKENS:
        await publisher.send(b"t.read.x", b"x", b"", b"a." + token)
    await service.is_quiet()
    assert service.handled > 2 * len(DATA)
    publisher.close()
    await service.bus.close()
