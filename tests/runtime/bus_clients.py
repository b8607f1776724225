"""Buses with what they reported, real servers of any configuration, and servers that a test
plays."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import structlog

from schemas.errors import Unavailable
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus
from tests.kit.nats import free_port
from tests.kit.waiting import LIMIT_S, eventually


class Client:
    """A bus, and everything that it reported."""

    def __init__(self, *urls: str, **config: object) -> None:
        self.log = structlog.testing.LogCapture()
        self.fatal: list[str] = []
        self.reconnects = 0
        self.bus = Bus(
            BusConfig(nats_url=",".join(urls), **config),  # type: ignore[arg-type]
            name="test",
            inbox_prefix="_INBOX_test",
            log=structlog.wrap_logger(structlog.PrintLogger(), processors=[self.log]),
            on_fatal=self.fatal.append,
        )
        self.bus.on_reconnect.append(self._reconnected)

    def _reconnected(self) -> None:
        self.reconnects += 1

    def reasons(self, event: str) -> list[str]:
        return [entry["reason"] for entry in self.log.entries if entry["event"] == event]

    async def works(self, data: bytes = b"x") -> None:
        """A message goes to the server and back."""
        received: list[bytes] = []
        subscription = await self.bus.subscribe(
            "works", lambda delivery: received.append(delivery.data)
        )
        assert self.bus.publish("works", data)
        await eventually(lambda: received == [data])
        await subscription.stop()


@asynccontextmanager
async def connected(*urls: str, **config: object) -> AsyncIterator[Client]:
    client = Client(*urls, **config)
    await client.bus.connect()
    yield client
    await asyncio.wait_for(client.bus.close(), LIMIT_S)


async def refused(*urls: str, **config: object) -> str:
    """The error of a client that is refused at once, long before its own deadline."""
    with pytest.raises(Unavailable) as raised:
        await asyncio.wait_for(
            Client(*urls, connect_timeout_s=10 * LIMIT_S, **config).bus.connect(), LIMIT_S
        )
    return str(raised.value)


@contextmanager
def serving(binary: str, directory: Path, config: str, port: int = 0) -> Iterator[str]:
    """A real server with this configuration; its address."""
    address = f"127.0.0.1:{port or free_port()}"
    file = directory / f"nats-{address.rpartition(':')[2]}.conf"
    file.write_text(f'listen: "{address}"\n{config}\n')
    server = subprocess.Popen([binary, "-c", str(file)], stderr=subprocess.DEVNULL)
    yield address
    server.kill()
    server.wait()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def pretender(talk: Talk) -> AsyncIterator[str]:
    """A server that sends what a test makes it send; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The handshake of a server that takes anybody."""
    writer.write(b"INFO {}\r\n")
    assert (await reader.readline()).startswith(b"CONNECT ")
    assert await reader.readline() == b"PING\r\n"
    writer.write(b"PONG\r\n")


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        if line == b"PING\r\n":
            writer.write(b"PONG\r\n")
