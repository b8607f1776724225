"""Plays seeds with a mutant until one fails that the unchanged code passes.

Each mutant has an interpreter of its own. References come from the unchanged code.
"""

import pickle
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from simulation import interpreter, reach
from simulation.mutants.plant import Mutant, plant
from simulation.pool import open_pool
from simulation.result import Result

if TYPE_CHECKING:
    from simulation.scenario import Scenario

TURNS_LIMIT_S = 1000.0
"""Virtual time in which all sessions must end. Without mutants it takes 800 s at most; a turn that
hangs need not be watched for an hour."""
CPU_LIMIT_S = 240.0
"""CPU time after which a seed is ended: an endless loop in the mutant. A seed takes three
seconds."""
COST_OF_SEED = 8
"""What a seed costs besides its sessions, in sessions."""
LENGTHS_S = 3.0, 12.0
"""Faults that last longer are others: a process counts as dead, or all that waits for it gives
up."""


@dataclass(frozen=True)
class Find:
    """What became of a mutant."""

    mutant: Mutant
    seed: int | None
    """The seed that failed; None: the mutant was missed."""
    turns: int
    """Turns that were played until then."""
    failures: Sequence[str]
    touched: int = 0
    """Seeds with another trace than that of the unchanged code, of a mutant that was missed."""


class Baseline:
    """The unchanged code: its references, and how it plays a seed, each made once. Thread-safe."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._lock = Lock()
        self._pool = open_pool(1)
        self._references: dict[int, bytes] = {}
        self._results: dict[int, Result] = {}

    def choose(self, seeds: Sequence[int], count: int) -> list[int]:
        """Chooses seeds in such an order that all kinds of faults come early, in all stages, short
        and long, and with few sessions first: such a seed takes less time."""
        return self._pool.submit(_choose, seeds, count, self._model).result()

    def reference(self, seed: int) -> bytes:
        """The pickled reference of a seed's workload."""
        with self._lock:
            if seed not in self._references:
                self._references[seed] = self._pool.submit(
                    _reference_of, seed, self._model
                ).result()
            return self._references[seed]

    def result(self, seed: int) -> Result:
        """Plays a seed with the unchanged code."""
        reference = self.reference(seed)
        with self._lock:
            if seed not in self._results:
                result = self._results[seed] = self._pool.submit(
                    _play, None, seed, self._model, reference
                ).result()
                if result.failures:
                    print(
                        f"seed {seed} fails without mutants: {result.failures[0]}",
                        file=sys.stderr,
                        flush=True,
                    )
            return self._results[seed]

    def close(self) -> None:
        """Ends the interpreter."""
        self._pool.shutdown()


def hunt(mutant: Mutant, seeds: Sequence[int], model: Path, baseline: Baseline) -> Find:
    """Plays seeds, in this order, until one finds the mutant."""
    turns, results = 0, list[Result]()
    with open_pool(1) as pool:
        for seed in seeds:
            try:
                result = pool.submit(_play, mutant, seed, model, baseline.reference(seed)).result()
            except BrokenProcessPool:
                return Find(
                    mutant, seed, turns, [f"it does not end within {CPU_LIMIT_S:g} s of CPU time"]
                )
            turns += result.turns
            if result.failures and not baseline.result(seed).failures:
                return Find(mutant, seed, turns, result.failures)
            results.append(result)
    touched = sum(result.digest != baseline.result(result.seed).digest for result in results)
    return Find(mutant, None, turns, [], touched)


@cache
def _prepare(mutant: Mutant | None) -> None:
    """Loads the services, once, as `simulation.run` does."""
    interpreter.install()
    reach.install()
    if mutant is not None:
        plant(mutant)
    from simulation import scenario
    from simulation.world import prepare

    scenario.TURNS_LIMIT_S = TURNS_LIMIT_S
    prepare()


def _choose(seeds: Sequence[int], count: int, model: Path) -> list[int]:
    _prepare(None)
    from simulation.scenario import Scenario

    scenarios = {seed: Scenario(seed, model) for seed in seeds}
    features = {seed: _features(scenario) for seed, scenario in scenarios.items()}
    costs = {
        seed: COST_OF_SEED + len(scenario.workload.sessions) for seed, scenario in scenarios.items()
    }
    chosen, counts = list[int](), Counter[object]()
    while len(chosen) < count:
        best = max(
            features,
            key=lambda seed: (
                sum(0.5 ** counts[feature] for feature in features[seed]) / costs[seed]
            ),
        )
        chosen.append(best)
        counts.update(features.pop(best))
    return chosen


def _features(scenario: "Scenario") -> set[object]:
    """What a seed's faults have that those of others may lack."""
    features = set[object]()
    for fault in scenario.faults:
        length = sum(fault.seconds >= limit_s for limit_s in LENGTHS_S)
        is_only = scenario.counts.get(fault.stage) == 1
        features |= {
            fault.kind,
            (fault.kind, fault.stage, fault.subject, length),
            (fault.kind, fault.stage, is_only),
        }
        features.add((fault.kind, bool(fault.left), scenario.window_bytes))
        features.add(fault.branch)
    return features


def _reference_of(seed: int, model: Path) -> bytes:
    _prepare(None)
    from simulation.scenario import WORKLOADS

    return _reference(seed % WORKLOADS, model)


@cache
def _reference(workload: int, model: Path) -> bytes:
    from simulation.scenario import Scenario

    return pickle.dumps(Scenario(workload, model).reference())


def _play(mutant: Mutant | None, seed: int, model: Path, reference: bytes) -> Result:
    """Plays a seed in an interpreter of its own, which the kernel ends after `CPU_LIMIT_S`."""
    _prepare(mutant)
    from simulation.scenario import Scenario

    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_LIMIT_S)
    try:
        result = Scenario(seed, model, pickle.loads(reference)).play()
    except Exception as error:
        result = Result(seed, failures=[f"{type(error).__name__}: {error}"])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    result.trace.clear()
    return result
