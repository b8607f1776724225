"""The simulated network: connections as those of the operating system, and what only a simulation
can do to them."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from simulation.loop import Machine, SimLoop
from simulation.network import RECEIVE_BYTES, Network
from tests.kit.nats import free_port
from tests.kit.waiting import LIMIT_S, eventually

MIB = 1 << 20


class Recorder(asyncio.Protocol):
    """Notes what happens to a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.ends: list[str] = []
        self.pauses: list[str] = []
        self.half_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.ends.append("eof")
        return self.half_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append("lost" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self.pauses.append("pause")

    def resume_writing(self) -> None:
        self.pauses.append("resume")


async def joined(host: str, port: int) -> tuple[Recorder, Recorder]:
    """Both ends of a connection."""
    loop = asyncio.get_running_loop()
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(Recorder())
        return accepted[-1]

    server = await loop.create_server(accept, host, port)
    _, client = await loop.create_connection(Recorder, host, port)
    await eventually(lambda: bool(accepted) and hasattr(accepted[0], "transport"))
    server.close()
    return client, accepted[0]


Check = Callable[[str, int], Coroutine[Any, Any, None]]


async def data_arrives_in_order_and_ends_with_the_connection(host: str, port: int) -> None:
    near, far = await joined(host, port)
    sent = b""
    for number in range(200):
        data = bytes([number]) * (number * 37)
        near.transport.write(data)
        sent += data
        if number % 7 == 0:
            await asyncio.sleep(0)
    near.transport.close()
    near.transport.write(b"after the end")
    await eventually(lambda: far.ends == ["eof", "lost"])
    assert far.received == sent
    await eventually(lambda: near.ends == ["lost"])


async def one_direction_may_end_before_the_other(host: str, port: int) -> None:
    near, far = await joined(host, port)
    far.half_open = True
    near.transport.write(b"question")
    near.transport.write_eof()
    await eventually(lambda: far.ends == ["eof"])
    far.transport.write(b"answer")
    await eventually(lambda: near.received == b"answer")
    assert near.ends == []
    far.transport.close()
    await eventually(lambda: near.ends == ["eof", "lost"] and far.ends == ["eof", "lost"])
    with pytest.raises(RuntimeError):
        near.transport.write(b"more")


async def writer_pauses_while_nothing_is_read(host: str, port: int) -> None:
    near, far = await joined(host, port)
    far.transport.pause_reading()
    near.transport.write(b"x" * 1000)
    assert near.pauses == []
    near.transport.write(bytes(16 * MIB))
    assert near.pauses == ["pause"]
    await asyncio.sleep(0.05)
    assert near.transport.get_write_buffer_size() > MIB
    assert near.pauses == ["pause"]
    far.transport.resume_reading()
    await eventually(lambda: near.pauses == ["pause", "resume"])
    await eventually(lambda: len(far.received) == 16 * MIB + 1000)
    assert near.transport.get_write_buffer_size() == 0
    near.transport.close()
    await eventually(lambda: bool(near.ends))


async def abort_drops_what_is_pending(host: str, port: int) -> None:
    near, far = await joined(host, port)
    far.transport.pause_reading()
    near.transport.write(bytes(16 * MIB))
    near.transport.abort()
    await eventually(lambda: near.ends == ["lost"])
    far.transport.resume_reading()
    await eventually(lambda: far.ends == ["eof", "lost"])
    assert len(far.received) < 16 * MIB


async def nobody_listens_on_a_closed_port(host: str, port: int) -> None:
    near, far = await joined(host, port)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.get_running_loop().create_connection(Recorder, host, port)
    near.transport.close()
    await eventually(lambda: bool(near.ends and far.ends))


CHECKS: list[Check] = [
    data_arrives_in_order_and_ends_with_the_connection,
    one_direction_may_end_before_the_other,
    writer_pauses_while_nothing_is_read,
    abort_drops_what_is_pending,
    nobody_listens_on_a_closed_port,
]


def name_of(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_check_holds_in_the_operating_system(check: Check) -> None:
    asyncio.run(check("127.0.0.1", free_port()))


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_check_holds_in_the_simulation(check: Check) -> None:
    for seed in range(3):
        with Simulation(seed) as simulation:
            simulation.run(check("host", 1))


class Simulation:
    """Two processes, `a` and `b`, and their connection."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop(Random(seed))
        self.network = Network(self.loop)
        self.a, self.b = Machine("a"), Machine("b")
        self.near, self.far = Recorder(), Recorder()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.end()
        assert self.errors == []

    def run(self, work: Coroutine[Any, Any, None], machine: Machine | None = None) -> None:
        context = (machine or self.loop.system).context
        task = self.loop.create_task(work, context=context)
        assert self.loop.run_until(task.done, self.loop.now + LIMIT_S)
        task.result()

    def pass_time(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self.loop.run_until(lambda: False, self.loop.now + seconds)

    def connect(self) -> "Simulation":
        """Connects `a` to `b`."""

        async def listen() -> None:
            await self.loop.create_server(lambda: self.far, "b", 1)

        async def connect() -> None:
            await self.loop.create_connection(lambda: self.near, "b", 1)

        self.run(listen(), self.b)
        self.run(connect(), self.a)
        self.pass_time(0.01)
        return self

    def cut(self, *names: str) -> None:
        self.network.cut.add(frozenset(names))


@pytest.mark.parametrize("names", [("a", "b"), ("a",), ("b",)])
def test_bytes_from_before_during_and_after_a_cut_arrive_once_and_in_order(
    names: tuple[str, ...],
) -> None:
    for seed in range(20):
        check_cuts(names, seed)


def check_cuts(names: tuple[str, ...], seed: int) -> None:
    random = Random(seed)
    with Simulation(seed) as simulation:
        simulation.connect()
        sent, back, cut = b"", b"", False
        for number in range(60):
            data = bytes([number]) * random.randrange(1, 3000)
            sent, back = sent + data, back + data
            simulation.near.transport.write(data)
            simulation.far.transport.write(data)
            if random.random() < 0.3:
                cut = not cut
                if cut:
                    simulation.cut(*names)
                else:
                    simulation.network.heal(*names)
            if random.random() < 0.7:
                simulation.pass_time(random.choice([1e-5, 1e-4, 1e-3]))
        simulation.network.heal(*names)
        simulation.pass_time(1)
        assert simulation.far.received == sent, f"seed {seed}"
        assert simulation.near.received == back, f"seed {seed}"


def test_nothing_passes_a_cut_in_either_direction() -> None:
    with Simulation().connect() as simulation:
        simulation.near.transport.write(b"in flight")
        simulation.cut("a", "b")
        simulation.far.transport.write(b"answer")
        simulation.near.transport.close()
        simulation.pass_time(60)
        assert simulation.near.received == simulation.far.received == b""
        assert simulation.far.ends == []
        simulation.network.heal("a", "b")
        simulation.pass_time(1)
        assert simulation.far.received == b"in flight"
        assert simulation.far.ends == ["eof", "lost"]


def test_killed_process_ends_its_connections_after_what_it_sent() -> None:
    with Simulation().connect() as simulation:
        simulation.near.transport.write(b"last words")
        simulation.loop.kill(simulation.a)
        simulation.network.lost(simulation.a)
        simulation.pass_time(1)
        assert simulation.far.received == b"last words"
        assert simulation.far.ends == ["eof", "lost"]
        assert simulation.near.ends == []


def test_lost_machine_is_silent() -> None:
    with Simulation().connect() as simulation:
        simulation.loop.kill(simulation.b)
        simulation.network.lost(simulation.b, silently=True)
        simulation.near.transport.write(b"hello?")

        async def connect() -> None:
            await simulation.loop.create_connection(Recorder, "b", 1)

        task = simulation.loop.create_task(connect(), context=simulation.a.context)
        simulation.pass_time(600)
        assert simulation.near.ends == []
        assert not task.done()
        task.cancel()
        simulation.pass_time(1)


def test_frozen_receiver_gets_everything_when_it_goes_on() -> None:
    with Simulation().connect() as simulation:
        simulation.b.frozen = True
        sent = b"".join(bytes([number]) * 10_000 for number in range(100))
        for start in range(0, len(sent), 10_000):
            simulation.near.transport.write(sent[start : start + 10_000])
        simulation.pass_time(90)
        assert simulation.far.received == b""
        assert simulation.near.pauses == ["pause"]
        assert simulation.near.transport.get_write_buffer_size() == len(sent) - RECEIVE_BYTES
        simulation.loop.resume(simulation.b)
        simulation.pass_time(1)
        assert simulation.far.received == sent
        assert simulation.near.pauses == ["pause", "resume"]
