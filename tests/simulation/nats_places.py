"""Places where a case about NATS runs: real servers on asyncio's own loop, or the model in
simulated time."""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from nats.aio.client import Client as NatsPy
from nats.aio.msg import Msg

from simulation.loop import Machine, SimLoop
from simulation.nats_server import Cluster, Server
from simulation.network import Network
from tests.kit.nats import NatsServer, free_port
from tests.kit.waiting import LIMIT_S
from tests.runtime.bus_clients import Client

VIRTUAL_LIMIT_S = 600.0
MAX_PAYLOAD = 8 << 20
WRITE_DEADLINE_S = 1.0
STORES = "max_file_store: 4GB, max_memory_store: 64MB"
OPTIONS = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}


class Wire:
    """A connection on which a case writes and reads the protocol's bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.info: dict[str, Any] = {}
        self._received = bytearray()

    async def open(self) -> "Wire":
        line = await self.reader.readline()
        self.info = json.loads(line.removeprefix(b"INFO "))
        self.write(b"CONNECT " + json.dumps(OPTIONS).encode() + b"\r\n")
        return self

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes = b"") -> bytes:
        """Sends operations and a ping; returns what comes until the answer to that ping, or until
        the end."""
        self.write(data + b"PING\r\n")
        return (await self.until(b"PONG\r\n")).removesuffix(b"PONG\r\n")

    async def until(self, end: bytes) -> bytes:
        """Returns what comes up to these bytes, or until the connection ends."""
        async with asyncio.timeout(LIMIT_S):
            while end not in self._received:
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = await self.reader.read(1 << 20)
                if not data:
                    return bytes(self._received) + b"<end>"
                self._received += data
        size = self._received.index(end) + len(end)
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    async def rest(self) -> bytes:
        """Returns what comes until the connection ends."""
        return await self.until(b"<never>")


class Place(ABC):
    """One server, or a cluster, and its clients. A server may be killed and started again, or
    suspended and resumed."""

    def __init__(self) -> None:
        self._closing: list[Callable[[], Awaitable[object]]] = []

    @abstractmethod
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server."""

    @abstractmethod
    async def kill(self, number: int = 0) -> None: ...

    @abstractmethod
    async def start(self, number: int = 0) -> None: ...

    @abstractmethod
    async def suspend(self) -> None: ...

    @abstractmethod
    async def resume(self) -> None: ...

    async def wire(self, number: int = 0) -> Wire:
        """Connects to a server."""
        reader, writer = await asyncio.open_connection(*self.addresses()[number], limit=1 << 16)

        async def close() -> None:
            writer.transport.abort()

        self._closing.append(close)
        return await Wire(reader, writer).open()

    async def client(self) -> NatsPy:
        """Connects nats-py to the first server."""
        host, port = self.addresses()[0]
        client = NatsPy()

        async def ignore(_: Exception) -> None:
            pass

        await client.connect([f"nats://{host}:{port}"], allow_reconnect=False, error_cb=ignore)
        self._closing.append(client.close)
        return client

    async def bus(self) -> Client:
        """Connects the product's bus, to all servers."""
        client = Client(*(f"nats://{host}:{port}" for host, port in self.addresses()))
        await client.bus.connect()
        self._closing.append(client.bus.close)
        return client

    async def close_clients(self) -> None:
        while self._closing:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._closing.pop()(), LIMIT_S)


Case = Callable[[Place], Awaitable[None]]


class RealServers(Place):
    """Processes of nats-server."""

    def __init__(self, binary: str, directory: Path, count: int = 1) -> None:
        super().__init__()
        routes = [free_port() for _ in range(count)]
        urls = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
        self._servers: list[NatsServer] = []
        for number, route in enumerate(routes):
            settings = f'server_name: n{number}\nwrite_deadline: "{WRITE_DEADLINE_S}s"\n'
            if count > 1:
                listen = f'listen: "127.0.0.1:{route}"'
                settings += f"cluster {{ name: c, {listen}, routes: [{urls}] }}\n"
            server = NatsServer(binary, str(directory), jetstream=STORES, settings=settings)
            server.start()
            self._servers.append(server)

    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", server.port) for server in self._servers]

    async def kill(self, number: int = 0) -> None:
        self._servers[number].kill()

    async def start(self, number: int = 0) -> None:
        self._servers[number].start()

    async def suspend(self) -> None:
        self._servers[0].pause()

    async def resume(self) -> None:
        self._servers[0].resume()

    def run(self, case: Case) -> None:
        """Runs a case."""

        async def whole() -> None:
            try:
                async with asyncio.timeout(4 * LIMIT_S):
                    await case(self)
            finally:
                await self.close_clients()

        asyncio.run(whole())

    def stop(self) -> None:
        for server in self._servers:
            server.kill()


class ModelServers(Place):
    """The model, in simulated time."""

    def __init__(self, count: int = 1, *, seed: int = 0) -> None:
        super().__init__()
        self.loop = SimLoop(Random(seed))
        self.network = Network(self.loop)
        self.cluster = Cluster(self.loop, write_deadline_s=WRITE_DEADLINE_S)
        self._servers: dict[int, Server] = {}
        self._count = count
        self._errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self._errors.append(context))
        for number in range(count):
            self._launch(number)

    def _launch(self, number: int) -> None:
        machine = Machine(f"n{number}")
        server = self._servers[number] = Server(self.cluster, machine, f"n{number}", 4222)
        self.loop.create_task(server.start(), context=machine.context)

    def addresses(self) -> list[tuple[str, int]]:
        return [(f"n{number}", 4222) for number in range(self._count)]

    async def kill(self, number: int = 0, *, silently: bool = False) -> None:
        """`silently`: its machine is lost, too."""
        server = self._servers.pop(number)
        server.stopped()
        self.loop.kill(server.machine)
        self.network.lost(server.machine, silently=silently)

    async def start(self, number: int = 0) -> None:
        self._launch(number)
        await asyncio.sleep(0.1)

    async def suspend(self) -> None:
        self._servers[0].machine.frozen = True

    async def resume(self) -> None:
        self.loop.resume(self._servers[0].machine)

    def run(self, case: Case) -> None:
        """Runs a case."""

        async def whole() -> None:
            await asyncio.sleep(0.01)  # until the servers listen
            try:
                await case(self)
            finally:
                await self.close_clients()

        task = self.loop.create_task(whole())
        try:
            assert self.loop.run_until(task.done, VIRTUAL_LIMIT_S), "the case does not end"
            task.result()
            assert not self._errors, self._errors
        finally:
            self.loop.end()


async def listen(client: NatsPy, subject: str) -> list[Msg]:
    """Subscribes; returns the list to which messages are added."""
    received: list[Msg] = []

    async def take(message: Msg) -> None:
        received.append(message)

    await client.subscribe(subject, cb=take)
    await settle(client)
    return received


async def settle(client: NatsPy) -> None:
    """Waits until the server has everything that a client sent."""
    for _ in range(2):  # nats-py sends a ping before pending messages
        await client.flush(int(LIMIT_S))
