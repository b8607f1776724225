"""Plays seeds in several processes. Only those import the services, after their clocks were
replaced."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from pathlib import Path

from simulation.result import Result


def open_pool(jobs: int) -> ProcessPoolExecutor:
    """Makes processes that play."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _follow_parent)


def _follow_parent() -> None:
    """Lets this process end with the one that started it, however that ends. Ctrl-C is for that one
    only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def build_model(directory: Path) -> Path:
    """Makes the model's directory."""
    from turnwire_tools.script.demo_model import build_demo_model

    return build_demo_model(directory / "model")


def play(seed: int, model: Path, trace: bool = False) -> Result:
    """Plays a seed in a process of the pool. `trace`: with its whole trace."""
    from simulation import run

    return run.play(seed, model, trace=trace)


def reduce(seed: int, model: Path) -> list[str]:
    """The faults that a failing seed needs."""
    from simulation import run

    return [str(fault) for fault in run.reduce(seed, model)]


def results(pool: Executor, first: int, turns: int, jobs: int, model: Path) -> Iterator[Result]:
    """Plays seed after seed until there are enough turns. Which seeds these are does not depend on
    the machine."""
    open_: dict[Future[Result], int] = {}
    seed, played, done = first, 0, dict[int, Result]()
    at = first
    while played < turns:
        while len(open_) < 2 * jobs:
            open_[pool.submit(play, seed, model)] = seed
            seed += 1
        for future in wait(open_, return_when=FIRST_COMPLETED).done:
            del open_[future]
            result = future.result()
            done[result.seed] = result
        while at in done and played < turns:
            result = done.pop(at)
            played, at = played + result.turns, at + 1
            yield result
    for future in open_:
        future.cancel()
