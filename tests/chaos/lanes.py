"""Runs trials on several deployments side by side, each with its clients in a process of its
own."""

import contextlib
import multiprocessing
import signal
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop
from tokenizers import Tokenizer

from tests.chaos.deployment import Deployment
from tests.chaos.plans import Trial
from tests.chaos.trials import Result, Run
from turnwire_tools.script.demo_model import build_demo_model


def run_lanes(
    trials: Sequence[Trial], parallel: int = 1, directory: Path | None = None
) -> Iterator[Result]:
    """Yields results as they come. `directory`: where logs are kept; default: they are not.

    Trials of one number of instances share deployments, and run on them one after the other. Raises
    RuntimeError if a lane fails; its other trials are lost then.
    """
    ordered = sorted(trials, key=lambda trial: trial.instances)
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="turnwire-chaos-model-") as scratch:
        model = build_demo_model(Path(scratch) / "model")
        lanes = []
        for number in range(parallel):
            place = directory / f"lane{number}" if directory else None
            work = (ordered[number::parallel], model, place, results)
            lanes.append(context.Process(target=_lane, args=work))
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


def _lane(trials: Sequence[Trial], model: Path, directory: Path | None, results: Any) -> None:
    """Puts each result, or the text of the error that ended the lane."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            uvloop.run(_run(trials, model, directory, results))
        except Exception:
            results.put(traceback.format_exc())


async def _run(trials: Sequence[Trial], model: Path, directory: Path | None, results: Any) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for instances in sorted({trial.instances for trial in trials}):
        place = directory / f"{instances}" if directory else None
        async with Deployment(model, instances, directory=place) as deployment:
            run = Run(deployment, tokenizer)
            for trial in trials:
                if trial.instances == instances:
                    results.put(await run.run(trial))
