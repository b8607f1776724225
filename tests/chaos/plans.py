"""Which trials there are: those of a suite, from a seed."""

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

from tests.chaos.deployment import NATS, SERVER, STAGES
from tests.chaos.faults import ACTIONS, Action, Disturbance, Fault, RandomFaults, Rolling

SUITES = ("faults", "servers", "rolling", "soak")
SERVER_STREAMS = 16


Cell: TypeAlias = tuple[Action, str, int]
"""Fault, stage, and number of instances of each stage."""


@dataclass(frozen=True)
class Load:
    """The streams of a trial."""

    streams: int = 64
    new: int = 12
    """Requests during the fault, and a few after it."""
    seconds: tuple[float, float] = (4.0, 16.0)
    """How long a stream takes without a fault."""
    delay_ms: tuple[int, int] = (20, 50)
    start_s: float = 1.5
    """Within which all are sent."""
    steady: bool = False
    """Each stream is followed by another, until the fault is over."""


@dataclass(frozen=True)
class Trial:
    """What happens, from its seed alone."""

    seed: str
    instances: int
    fault: Disturbance
    load: Load = Load()
    watch: bool = False
    """Memory and open files must stay flat."""
    over_servers: bool = False
    """Workers decode on inference servers."""

    @property
    def cell(self) -> str:
        """The row of the table."""
        return f"{self.fault.cell} × {self.instances}"


def planned(
    suite: str,
    count: int,
    seed: int,
    *,
    only: str = "*",
    outage: tuple[float, float],
    load: Load | None = None,
    soak_s: float = 0.0,
) -> list[Trial]:
    """The trials of a suite. `only`: a pattern of ACTION/STAGE/INSTANCES."""
    load = load or Load()
    seeds = [f"{seed}-{number}" for number in range(count)]
    if suite == "faults":
        cells = [
            (action, stage, n) for n in (1, 2) for stage in (*STAGES, NATS) for action in ACTIONS
        ]
        return _single_faults(cells, seeds, Random(seed), only, outage, load)
    if suite == "servers":
        cells = [(action, SERVER, n) for n in (1, 2) for action in ("kill", "stop")]
        load = replace(load, streams=min(load.streams, SERVER_STREAMS))
        trials = _single_faults(cells, seeds, Random(seed), only, outage, load)
        return [replace(trial, over_servers=True) for trial in trials]
    if suite == "rolling":
        load = replace(load, steady=True)
        return [Trial(one, 1 + n % 2, Rolling(), load) for n, one in enumerate(seeds)]
    load = replace(load, streams=32, new=0, steady=True)
    return [Trial(one, 2, RandomFaults(one, 5.0, soak_s), load, watch=True) for one in seeds]


def _single_faults(
    cells: Sequence[Cell],
    seeds: Sequence[str],
    chance: Random,
    only: str,
    outage: tuple[float, float],
    load: Load,
) -> list[Trial]:
    """Every cell as often as any other, in an order drawn from the seed; the bus has one server.
    Outages are drawn log-uniformly."""
    cells = [cell for cell in cells if fnmatch.fnmatch("/".join(map(str, cell)), only)]
    drawn = [cells[number % len(cells)] for number in range(len(seeds))]
    chance.shuffle(drawn)
    found = []
    for seed, (action, stage, instances) in zip(seeds, drawn, strict=True):
        chance = Random(seed)
        length = math.exp(chance.uniform(*map(math.log, outage)))
        fault = Fault(action, stage, chance.randrange(8), chance.uniform(2.0, 5.0), length)
        found.append(Trial(seed, instances, fault, load))
    return found
