"""Faults of a plan: overlapping ones end with the last of them, and late ones wait for the end of
the load."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from simulation.faults import Fault, Injector, Kind
from simulation.loop import Machine
from simulation.reach import reached
from simulation.world import Running, World

PROCESS = "worker1"


class FakeWorld(World):
    """A deployment with one process that does nothing."""

    def __init__(self) -> None:
        super().__init__(0, Path())
        self.running[PROCESS] = self.made(PROCESS)
        self.start_server("nats1")

    def made(self, name: str) -> Running:
        machine = Machine(name)
        task: asyncio.Task[None] = self.loop.create_task(
            asyncio.sleep(1e9), context=machine.context
        )
        return Running(machine, "worker", task)

    def is_ready(self, running: Running) -> bool:
        return running.machine.name in self.running


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    made = FakeWorld()
    yield made
    made.close()


STATES: dict[Kind, Callable[[FakeWorld], bool]] = {
    "cut": lambda world: bool(world.network.cut),
    "lose messages": lambda world: bool(world.cluster.losses),
    "full disk": lambda world: world.cluster.disk_full,
    "freeze": lambda world: world.running[PROCESS].machine.frozen,
}
"""Whether a fault of a kind is under way."""


def test_overlapping_faults_end_with_the_last_one(world: FakeWorld) -> None:
    faults = []
    for kind in STATES:
        stage = "worker" if kind in ("cut", "freeze") else ""
        for at, seconds in ((1.1, 2.0), (1.5, 4.0), (1.9, 3.0)):
            faults.append(Fault(at, kind, stage, 0, seconds, 0.1))
    Injector(world, faults, Random(0), lambda: 0)
    while world.loop.now < 6.0:
        world.run(lambda: False, 0.1)
        for kind, is_under_way in STATES.items():
            if 2.0 < world.loop.now < 5.4:
                assert is_under_way(world), (kind, world.loop.now)
            elif not 1.0 < world.loop.now < 5.7:
                assert not is_under_way(world), (kind, world.loop.now)


def test_fault_waits_for_a_rare_branch_and_hits_the_process_that_reaches_it(
    world: FakeWorld,
) -> None:
    world.running["worker2"] = world.made("worker2")
    faults = [
        Fault(0.5, "freeze", "worker", 0, 5.0, branch="a"),
        Fault(0.0, "kill", "worker", branch="b"),
    ]
    injector = Injector(world, faults, Random(0), lambda: 1)
    world.run(lambda: False, 5.0)
    assert not injector.applied
    assert injector.over
    began = world.loop.now
    world.loop.call_soon(reached, "a", context=world.running["worker2"].machine.context)
    assert world.run(lambda: bool(injector.applied), 5.0)
    (applied,) = injector.applied
    assert (applied.name, applied.fault.kind) == ("worker2", "freeze")
    assert 0.5 <= applied.began - began < 0.6
