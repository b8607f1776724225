"""Faults of a plan: overlapping ones end with the last of them, and late ones wait for the end of
the load."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from schemas.errors import Unavailable
from simulation.faults import PARTNERS, Fault, Injector, Kind, draw
from simulation.loop import Machine
from simulation.reach import marks, reached
from simulation.world import Running, World

PROCESS = "worker1"


class FakeWorld(World):
    """A deployment with one process that does nothing."""

    def __init__(self) -> None:
        super().__init__(0, Path())
        self.starts = 0
        self.failing_starts = 0
        """How many processes end at their start."""
        self.running[PROCESS] = self.made(PROCESS)
        self.start_server("nats1")

    def made(self, name: str) -> Running:
        machine = Machine(name)
        task: asyncio.Task[None] = self.loop.create_task(
            asyncio.sleep(1e9), context=machine.context
        )
        return Running(machine, "worker", task)

    def start(self, stage: str, *, port: int = 0, **settings: Any) -> Running:
        self.starts += 1
        running = self.made(f"{stage}-{self.starts}")
        running.port = port
        if self.starts <= self.failing_starts:
            running.failure = Unavailable("no bus")
        else:
            self.running[running.machine.name] = running
        return running

    def is_ready(self, running: Running) -> bool:
        return running.machine.name in self.running


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    made = FakeWorld()
    yield made
    made.close()


def _leaders(world: FakeWorld) -> bool:
    return world.cluster.everyone.leader is None


STATES: dict[Kind, Callable[[FakeWorld], Any]] = {
    "cut": lambda world: bool(world.network.cut),
    "slow network": lambda world: bool(world.network.slow),
    "slow loop": lambda world: world.running[PROCESS].machine.stall is not None,
    "cut bus": lambda world: bool(world.network.cut),
    "lose messages": lambda world: bool(world.cluster.losses),
    "no leader": _leaders,
    "full disk": lambda world: world.cluster.disk_full,
    "freeze": lambda world: world.running[PROCESS].machine.frozen,
    "freeze bus": lambda world: world.servers["nats1"].machine.frozen,
}
"""Whether a fault of a kind is under way."""


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", STATES)
def test_overlapping_faults_end_with_the_last_one(world: FakeWorld, kind: Kind, seed: int) -> None:
    random = Random(seed)
    stage = "worker" if kind in ("cut", "slow network", "slow loop", "freeze") else ""
    faults = [
        Fault(
            1.0 + random.random(),
            kind,
            stage,
            0,
            random.choice((2.0, 3.0, 4.0, 5.0)),
            random.choice((0.0, 0.1)),
        )
        for _ in range(3)
    ]
    if kind == "lose messages":
        faults = [Fault(one.at, kind, "", 0, one.seconds, 0.1) for one in faults]
    if kind == "no leader":
        faults = [Fault(one.at, kind, "", 0, one.seconds) for one in faults]
    injector = Injector(world, faults, random, lambda: 0)
    world.run(lambda: False, 0.9)
    is_under_way = STATES[kind]
    ends = max(one.at + one.seconds for one in faults)
    assert not is_under_way(world)
    world.run(lambda: False, 1.2)
    while world.loop.now < ends - 0.1:
        assert is_under_way(world), world.loop.now
        world.run(lambda: False, 0.1)
    world.run(lambda: False, 0.3)
    assert not is_under_way(world)
    assert all(one.ended <= ends + 0.1 for one in injector.applied)


def test_fault_waits_until_few_turns_are_left(world: FakeWorld) -> None:
    left = 10
    injector = Injector(
        world, [Fault(0.5, "clock", "worker", 0, 1.0, 5.0, left=3)], Random(0), lambda: left
    )
    world.run(lambda: False, 30.0)
    assert not injector.applied
    assert not injector.over
    left = 3
    began = world.loop.now
    world.run(lambda: bool(injector.applied), 5.0)
    assert 0.5 <= injector.applied[0].began - began < 0.8


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


def test_fault_does_not_begin_after_the_last_turn(world: FakeWorld) -> None:
    injector = Injector(world, [Fault(0.0, "kill", "worker", branch="a")], Random(0), lambda: 0)
    reached("a")
    world.run(lambda: False, 5.0)
    assert not injector.applied


def test_process_that_ends_at_its_start_is_started_again(world: FakeWorld) -> None:
    world.failing_starts = 2
    injector = Injector(world, [Fault(1.0, "kill", "worker", 0, 1.0)], Random(0), lambda: 0)
    assert world.run(lambda: injector.over, 20.0)
    assert world.starts == 3


def test_process_with_a_port_that_two_faults_end_has_one_successor(world: FakeWorld) -> None:
    world.running[PROCESS].port = 8000
    faults = [Fault(1.0, "terminate", "worker", 0, 1.0), Fault(1.5, "kill", "worker", 0, 3.0)]
    injector = Injector(world, faults, Random(0), lambda: 0)
    assert world.run(lambda: len(injector.applied) == 2 and injector.over, 20.0)
    assert [one.name for one in injector.applied] == [PROCESS, PROCESS]
    assert world.starts == 1


@pytest.mark.parametrize("seed", range(50))
def test_drawn_faults_begin_within_the_load(seed: int) -> None:
    for fault in draw(Random(seed), span_s=10.0, turns=20, branches=["a", "b"]):
        assert bool(fault.left) + bool(fault.branch) <= 1
        assert 0 <= fault.left <= 20
        assert 0 <= fault.seconds <= 90
        assert bool(fault.subject) <= (fault.kind == "lose messages")


def test_branches_that_partners_wait_for_exist() -> None:
    assert {branch for _, branch in PARTNERS.values()} <= {*marks()}
