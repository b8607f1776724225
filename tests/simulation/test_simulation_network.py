"""The simulated network: what only a simulation can do to connections. Those without faults are
compared with the operating system's by the cases of NATS."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from simulation.loop import Machine, SimLoop
from simulation.network import RECEIVE_BYTES, Network
from tests.kit.waiting import LIMIT_S


class Recorder(asyncio.Protocol):
    """Notes what happens to a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


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

    def run(self, work: Coroutine[Any, Any, Any], machine: Machine | None = None) -> None:
        context = (machine or self.loop.system).context
        task = self.loop.create_task(work, context=context)
        assert self.loop.run_until(task.done, self.loop.now + LIMIT_S)
        task.result()

    def pass_time(self, seconds: float) -> None:
        """Lets virtual time pass."""
        self.loop.run_until(lambda: False, self.loop.now + seconds)

    def connect(self) -> "Simulation":
        """Connects `a` to `b`."""
        self.run(self.loop.create_server(lambda: self.far, "b", 1), self.b)
        self.run(self.loop.create_connection(lambda: self.near, "b", 1), self.a)
        self.pass_time(0.01)
        return self


@pytest.mark.parametrize("names", [("a", "b"), ("a",)])
def test_bytes_of_before_and_during_a_cut_arrive_once_and_in_order(names: tuple[str, ...]) -> None:
    for seed in range(10):
        random = Random(seed)
        with Simulation(seed) as simulation:
            simulation.connect()
            near, far, network = simulation.near, simulation.far, simulation.network
            sent, back = b"", b""
            for number in range(60):
                data = bytes([number]) * random.randrange(1, 3000)
                sent, back = sent + data, back + data
                near.transport.write(data)
                far.transport.write(data)
                if random.random() < 0.3:
                    if network.cut:
                        network.heal(*names)
                    else:
                        network.cut.add(frozenset(names))
                if random.random() < 0.7:
                    simulation.pass_time(random.choice([1e-5, 1e-4, 1e-3]))
            network.cut.add(frozenset(names))
            near.transport.write(b"in flight")
            before = len(far.received)
            simulation.pass_time(60)
            assert len(far.received) == before
            network.heal(*names)
            simulation.pass_time(1)
            assert far.received == sent + b"in flight", seed
            assert near.received == back, seed


@pytest.mark.parametrize("is_silent", [False, True])
def test_process_that_ends_closes_its_connections_and_a_lost_machine_does_not(
    is_silent: bool,
) -> None:
    with Simulation().connect() as simulation:
        simulation.far.transport.write(b"last words")
        simulation.loop.kill(simulation.b)
        simulation.network.lost(simulation.b, silently=is_silent)
        simulation.pass_time(600)
        assert simulation.near.events == ([] if is_silent else ["lost"])
        assert is_silent or simulation.near.received == b"last words"
        assert simulation.far.events == []


def test_frozen_receiver_gets_everything_when_it_goes_on() -> None:
    with Simulation().connect() as simulation:
        near, far = simulation.near, simulation.far
        simulation.b.frozen = True
        sent = b"".join(bytes([number]) * 10_000 for number in range(100))
        near.transport.write(sent)
        simulation.pass_time(90)
        assert far.received == b""
        assert near.events == ["pause"]
        assert near.transport.get_write_buffer_size() == len(sent) - RECEIVE_BYTES
        simulation.loop.resume(simulation.b)
        simulation.pass_time(1)
        assert far.received == sent
        assert near.events == ["pause", "resume"]
