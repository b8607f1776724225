"""Which trials there are: plans of a suite, from a seed."""

import contextlib
import fnmatch
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.deployment import NATS, STAGES
from tests.chaos.disturbances import (
    ClockJump,
    FullDisk,
    MemoryLimit,
    RandomFaults,
    Rolling,
    clock_environments,
)
from tests.chaos.faults import ACTIONS, Action, Disturbance, Fault
from tests.chaos.trials import Load, Trial

SUITES = (
    "faults",
    "pairs",
    "rolling",
    "clock",
    "disk",
    "memory",
    "many",
    "groups",
    "images",
    "soak",
)
MANY = Load(streams=1000, seconds=(10.0, 25.0), delay_ms=(150, 300), start_s=10.0)
"""A thousand streams at once, slow ones: the load is their number."""
GROUP = 8
"""Agents that a coordinator starts in one moment."""
STORE_BYTES = 24 << 20
SMALL_CACHES = {"prompt_cache_mb": 2, "ledger_mb": 2}
"""Full long before the end of a soak, so that memory must stay flat."""


class Impossible(Exception):
    """This machine lacks what a suite needs."""


@dataclass
class Plan:
    """Trials, and the deployments that they need."""

    trials: list[Trial]
    deployment: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Deployment`."""


@contextlib.contextmanager
def planned(
    suite: str,
    count: int,
    seed: int,
    *,
    only: Sequence[str] = (),
    outage: tuple[float, float],
    load: Load,
    soak_s: float,
) -> Iterator[Plan]:
    """The plan of a suite. `only`: patterns of ACTION/STAGE/INSTANCES. Raises Impossible."""
    chance = Random(seed)
    seeds = [f"{seed}-{number}" for number in range(count)]
    both = [(1 + number % 2, one) for number, one in enumerate(seeds)]
    if suite == "faults":
        yield Plan(_faults(seeds, chance, only or ["*"], outage, load))
    elif suite == "pairs":
        yield Plan([_pair(one, instances, outage, load) for instances, one in both])
    elif suite == "rolling":
        yield Plan([Trial(one, n, (Rolling(),), replace(load, steady=True)) for n, one in both])
    elif suite == "clock":
        if shutil.which("cc") is None:
            raise Impossible("the library that shifts a process's clock needs a C compiler (cc)")
        jumps = [
            (stage, seconds) for seconds in (3600, -3600, 10**8, -30) for stage in ("", *STAGES)
        ]
        drawn = [jumps[number % len(jumps)] for number in range(count)]
        found = [Trial(one, n, (ClockJump(*drawn.pop(0), at_s=3.0),), load) for n, one in both]
        yield Plan(found, {"environments": clock_environments})
    elif suite == "disk":
        with small_disk(STORE_BYTES) as store:
            # The store is one disk: one deployment at a time.
            found = [
                Trial(one, 2, (FullDisk(store, 3.0, _length(Random(one), outage)),), load)
                for one in seeds
            ]
            yield Plan(found, {"store": store})
    elif suite == "memory":
        yield Plan(
            [_memory(one, n, STAGES[k // 2 % 4], outage, load) for k, (n, one) in enumerate(both)]
        )
    elif suite == "many":
        found = _faults(seeds, chance, only or ["*"], outage, replace(MANY, new=load.new))
        slots = {"worker": {"slots": MANY.streams, "queue_limit": 2 * MANY.streams}}
        yield Plan(found, {"options": slots})
    elif suite == "groups":
        found = _faults(
            seeds, chance, only or ["*"], outage, replace(load, new=2 * GROUP, group=GROUP)
        )
        yield Plan(found, {"options": {"worker": {"prefill_tokens_per_s": 5000}}})
    elif suite == "images":
        yield Plan(_faults(seeds, chance, only or ["*"], outage, replace(load, images=2)))
    else:
        steady = replace(load, streams=32, new=0, steady=True)
        found = [
            Trial(one, 2, (RandomFaults(one, 5.0, soak_s),), steady, watch=True) for one in seeds
        ]
        yield Plan(found, {"options": {"preprocessor": SMALL_CACHES}})


def cells() -> list[tuple[Action, str, int]]:
    """Every fault × stage × number of instances of each stage; the bus has one server."""
    return [(action, stage, n) for n in (1, 2) for stage in (*STAGES, NATS) for action in ACTIONS]


def _faults(
    seeds: Sequence[str],
    chance: Random,
    only: Sequence[str],
    outage: tuple[float, float],
    load: Load,
) -> list[Trial]:
    """Each cell as often as any other, in an order drawn from the seed."""
    wanted = [
        cell
        for cell in cells()
        if any(fnmatch.fnmatch("/".join(map(str, cell)), pattern) for pattern in only)
    ]
    if not wanted:
        raise Impossible(f"no fault is like {', '.join(only)}")
    drawn = [wanted[number % len(wanted)] for number in range(len(seeds))]
    chance.shuffle(drawn)
    found = []
    for seed, (action, stage, instances) in zip(seeds, drawn, strict=True):
        fault = _fault(Random(seed), action, stage, outage, (2.0, 5.0))
        found.append(Trial(seed, instances, (fault,), load))
    return found


def _pair(seed: str, instances: int, outage: tuple[float, float], load: Load) -> Trial:
    """Two faults of different stages at once, or overlapping."""
    chance = Random(seed)
    first, second = chance.sample((*STAGES, NATS), 2)
    one = _fault(chance, chance.choice(ACTIONS), first, outage, (2.0, 5.0))
    later = (one.at_s, one.at_s) if chance.random() < 0.5 else (one.at_s, one.at_s + one.outage_s)
    other: Disturbance = _fault(chance, chance.choice(ACTIONS), second, outage, later)
    return Trial(seed, instances, (one, other), load)


def _memory(
    seed: str, instances: int, stage: str, outage: tuple[float, float], load: Load
) -> Trial:
    chance = Random(seed)
    limit = MemoryLimit(stage, chance.randrange(8), chance.uniform(2, 5), _length(chance, outage))
    return Trial(seed, instances, (limit,), load)


def _fault(
    chance: Random, action: Action, stage: str, outage: tuple[float, float], at: tuple[float, float]
) -> Fault:
    length = _length(chance, outage)
    return Fault(action, stage, chance.randrange(8), chance.uniform(*at), length)


def _length(chance: Random, outage: tuple[float, float]) -> float:
    """Drawn log-uniformly."""
    return math.exp(chance.uniform(*map(math.log, outage)))


@contextlib.contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A file system of `size` bytes in memory. Raises Impossible without the right to mount one."""
    if os.geteuid() != 0:
        raise Impossible("a small file system is mounted by root only")
    with tempfile.TemporaryDirectory(prefix="turnwire-chaos-disk-") as name:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", name], check=False
        )
        if made.returncode:
            raise Impossible("no file system can be mounted here")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)
