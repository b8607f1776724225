"""Plays seeds in this interpreter: references are made once for each workload, failures are
reduced."""

import os
import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from simulation import interpreter, reach

interpreter.install()
reach.install()

from simulation.faults import Fault  # noqa: E402
from simulation.judges.answers import Reference  # noqa: E402
from simulation.result import Result  # noqa: E402
from simulation.scenario import WORKLOADS, Scenario  # noqa: E402
from simulation.world import prepare  # noqa: E402

prepare()


@cache
def _reference(workload: int, model: Path) -> Reference:
    """Plays a workload without faults, unless another interpreter has done so."""
    path = model.parent / f"reference-{workload}"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(Scenario(workload, model).reference()))
        part.replace(path)
    reference: Reference = pickle.loads(path.read_bytes())
    return reference


def play(seed: int, model: Path, *, trace: bool = False) -> Result:
    """Plays a seed. `trace`: keeps the whole trace."""
    scenario = _scenario(seed, model)
    reach.take()  # what references and reductions have reached
    result = scenario.play(keep_trace=trace)
    if not trace and not result.failures:
        result.trace.clear()
    result.reached = reach.take()
    return result


def reduce(seed: int, model: Path) -> list[Fault]:
    """The fewest of a failing seed's faults with which it still fails: the shortest beginning, and
    of that what is needed."""
    scenario = _scenario(seed, model)
    faults: Sequence[Fault] = scenario.faults
    for count in range(len(faults) + 1):
        if scenario.play(faults[:count]).failures:
            faults = faults[:count]
            break
    for fault in list(faults):
        fewer = [other for other in faults if other is not fault]
        if scenario.play(fewer).failures:
            faults = fewer
    return [*faults]


def _scenario(seed: int, model: Path) -> Scenario:
    return Scenario(seed, model, _reference(seed % WORKLOADS, model))
