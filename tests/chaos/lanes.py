"""Runs trials on several deployments side by side, each with its clients in a process of its
own."""

import contextlib
import multiprocessing
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from tokenizers import Tokenizer

from tests.chaos.deployment import Deployment
from tests.chaos.trials import Result, Run, Trial, as_document
from tests.kit.vision_model import build_vision_model
from turnwire_tools.script.demo_model import build_demo_model

Results = "multiprocessing.Queue[dict[str, Any] | str]"
"""Results; a text is the error that ended a lane."""


WINDOW = 131_072


def run_lanes(
    trials: Sequence[Trial],
    parallel: int,
    directory: Path | None,
    options: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields results as they come. `directory`: where logs are kept; default: they are not.

    Trials of one number of instances share deployments, and run on them one after the other. Raises
    RuntimeError if a lane fails; its other trials are lost then.
    """
    queues = divide(trials, parallel)
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="turnwire-chaos-model-") as scratch:
        sees = any(trial.load.images for trial in trials)
        build = partial(build_vision_model, window=WINDOW) if sees else build_demo_model
        model = build(Path(scratch) / "model")
        lanes = [
            context.Process(
                target=_lane, args=(number, queue, model, directory, options or {}, results)
            )
            for number, queue in enumerate(queues)
        ]
        for lane in lanes:
            lane.start()
        try:
            for _ in trials:
                found = results.get()
                if isinstance(found, str):
                    raise RuntimeError(found)
                yield found
        except BaseException:
            for lane in lanes:
                lane.terminate()
            raise
        finally:
            for lane in lanes:
                lane.join()


def divide(trials: Sequence[Trial], parallel: int) -> list[list[Trial]]:
    """Trials of each lane. A lane that runs trials of several numbers of instances starts another
    deployment for each."""
    lanes: list[list[Trial]] = [[] for _ in range(min(parallel, len(trials)))]
    for trial in sorted(trials, key=lambda trial: -sum(fault.outage_s for fault in trial.faults)):

        def cost(lane: list[Trial], trial: Trial = trial) -> float:
            other = sum(one.instances != trial.instances for one in lane)
            return (
                sum(30 + max((f.outage_s for f in one.faults), default=0.0) for one in lane)
                + 1000 * other
            )

        min(lanes, key=cost).append(trial)
    order = {trial.seed: number for number, trial in enumerate(trials)}
    return [sorted(lane, key=lambda trial: (trial.instances, order[trial.seed])) for lane in lanes]


def _lane(
    number: int,
    trials: Sequence[Trial],
    model: Path,
    directory: Path | None,
    options: dict[str, Any],
    results: Any,
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            uvloop.run(_run(number, trials, model, directory, options, results.put))
        except Exception:
            results.put(traceback.format_exc())


async def _run(
    number: int,
    trials: Sequence[Trial],
    model: Path,
    directory: Path | None,
    options: dict[str, Any],
    put: Callable[[dict[str, Any]], None],
) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for instances in sorted({trial.instances for trial in trials}):
        place = directory / f"lane{number}-{instances}" if directory else None
        async with Deployment(model, instances, directory=place, **options) as deployment:
            run = Run(deployment, tokenizer)
            for trial in trials:
                if trial.instances == instances:
                    result: Result = await run.run(trial)
                    put(as_document(result) | {"lane": number})
