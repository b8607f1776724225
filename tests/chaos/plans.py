"""Which trials there are: those of a suite, from a seed."""

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.chaos.deployment import NATS, STAGES
from tests.chaos.faults import ACTIONS, Action, Disturbance, Fault, RandomFaults, Rolling

SUITES = ("faults", "pairs", "rolling", "soak")


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
    faults: tuple[Disturbance, ...]
    load: Load = Load()
    watch: bool = False
    """Memory and open files must stay flat."""

    @property
    def may_tell(self) -> bool:
        """Whether a client may get an error, because its turn cannot continue: both processes with
        its tokens end, or its frontend's drain period is over while another process is away."""
        faults = [one for one in self.faults if isinstance(one, Fault) and one.action != "stop"]
        ended = {fault.stage for fault in faults}
        return {"worker", "parser"} <= ended or (len(self.faults) > 1 and "frontend" in ended)

    @property
    def cell(self) -> str:
        """The row of the table."""
        name = self.faults[0].cell if len(self.faults) == 1 else f"{len(self.faults)} faults"
        return f"{name} × {self.instances}"


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
    both = [(one, 1 + number % 2) for number, one in enumerate(seeds)]
    if suite == "faults":
        return _single_faults(seeds, Random(seed), only, outage, load)
    if suite == "pairs":
        return [_pair(one, n, outage, load) for one, n in both]
    if suite == "rolling":
        return [Trial(one, n, (Rolling(),), replace(load, steady=True)) for one, n in both]
    load = replace(load, streams=32, new=0, steady=True)
    return [Trial(one, 2, (RandomFaults(one, 5.0, soak_s),), load, watch=True) for one in seeds]


def _single_faults(
    seeds: Sequence[str], chance: Random, only: str, outage: tuple[float, float], load: Load
) -> list[Trial]:
    """Every fault × stage × number of instances of each stage, each as often as any other, in an
    order drawn from the seed; the bus has one server."""
    cells = [(action, stage, n) for n in (1, 2) for stage in (*STAGES, NATS) for action in ACTIONS]
    cells = [cell for cell in cells if fnmatch.fnmatch("/".join(map(str, cell)), only)]
    drawn = [cells[number % len(cells)] for number in range(len(seeds))]
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
    other = _fault(chance, chance.choice(ACTIONS), second, outage, later)
    return Trial(seed, instances, (one, other), load)


def _fault(
    chance: Random, action: Action, stage: str, outage: tuple[float, float], at: tuple[float, float]
) -> Fault:
    """Its length is drawn log-uniformly."""
    length = math.exp(chance.uniform(*map(math.log, outage)))
    return Fault(action, stage, chance.randrange(8), chance.uniform(*at), length)
