"""Runs trials on deployments, and judges all of their streams."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import aiohttp
from tokenizers import Tokenizer

from tests.chaos.clients import Stream, run_stream
from tests.chaos.deployment import Deployment
from tests.chaos.faults import Effects, sleep_until
from tests.chaos.judge import Judgement, Wanted, judge
from tests.chaos.plans import Trial
from tests.chaos.rollouts import judge_rollouts, make_rollouts, rollout_of
from tests.chaos.samples import Sampler
from tests.chaos.scripts import write_script
from turnwire_tools.clients.answer import APIS
from turnwire_tools.script.demo_model import build_demo_model

RECOVERY_S = 90.0
"""The default of `--recovery-s`."""
OPEN_S = 120.0
LATE_S = (1.0, 4.0)
"""How long the streams take that are sent during the fault."""
SLACK_S = 45.0
"""For the rest of a stream, beyond the time in which its turn must go on."""


@dataclass
class Result:
    """What came of a trial."""

    seed: str
    cell: str
    fault: str
    verdicts: Counter[str] = field(default_factory=Counter)
    new: Counter[str] = field(default_factory=Counter)
    """Verdicts of the requests that were sent during the fault; not in `verdicts`."""
    pause_s: float = 0.0
    silence_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """What was not as it should be after the trial, processes that ended by themselves, and
    exceptions in the logs."""
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        fine = {"whole", "reconnected"}
        return set(self.verdicts) <= fine and set(self.new) <= fine | {"refused"} and not self.wrong

    @property
    def line(self) -> str:
        """What came of it in a line, and what was wrong in others."""
        verdicts = f"{dict(self.verdicts)} new {dict(self.new)}"
        head = (
            f"{'ok  ' if self.good else 'FAIL'} {self.seed} {self.fault} in {self.cell}: {verdicts}"
        )
        return "\n       ".join([head, *self.wrong[:6], *self.notes[:6]])


async def run_trials(
    trials: Sequence[Trial], directory: Path | None = None
) -> AsyncIterator[Result]:
    """Yields results as they come. `directory`: where logs are kept; default: they are not.

    Trials of one number of instances share a deployment, and run on it one after the other. Their
    workers all decode on servers, or none.
    """
    with TemporaryDirectory(prefix="turnwire-chaos-") as scratch:
        model = build_demo_model(Path(scratch) / "model")
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        for instances in sorted({trial.instances for trial in trials}):
            place = (directory or Path(scratch)) / f"{instances}"
            servers = trials[0].over_servers
            async with Deployment(model, instances, place, over_servers=servers) as deployment:
                for trial in trials:
                    if trial.instances == instances:
                        yield await run_trial(deployment, tokenizer, trial)


async def run_trial(deployment: Deployment, tokenizer: Tokenizer, trial: Trial) -> Result:
    """Sends the streams, injects the fault, waits for every end, and judges."""
    load, chance = trial.load, Random(trial.seed + " streams")
    deployment.died.clear()
    first, last = trial.fault.at_s, trial.fault.at_s + trial.fault.outage_s
    effects = Effects(time.monotonic())
    over = asyncio.Event()
    streams: list[Stream] = []
    sampler = Sampler(deployment.pids)
    watching = asyncio.create_task(sampler.run())

    async def one(http: aiohttp.ClientSession, number: int, at_s: float) -> None:
        await sleep_until(effects.start + at_s)
        for turn in itertools.count():
            stream = draw_stream(tokenizer, trial, number, turn)
            stream.rollout = rollout_of(rollouts, number)
            streams.append(stream)
            await run_stream(http, deployment.urls, stream)
            judge_early(stream, effects, trial.instances)
            if not load.steady or number >= load.streams or over.is_set():
                return

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
        asyncio.TaskGroup() as group,
    ):
        rollouts = await make_rollouts(http, deployment.urls()[0])
        tasks = []
        for number in range(load.streams):
            tasks.append(group.create_task(one(http, number, chance.uniform(0.0, load.start_s))))
        await _all_opened(streams, load.streams)
        effects.start = max(effects.start, time.monotonic() - first)
        for number in range(load.streams, load.streams + load.new):
            at_s = chance.uniform(first + 0.2, last + 2)
            tasks.append(group.create_task(one(http, number, at_s)))
        await trial.fault.inject(deployment, effects)
        over.set()
        await asyncio.wait(tasks, timeout=RECOVERY_S + load.seconds[1] + SLACK_S)
        for task in tasks:
            task.cancel()
    result = Result(trial.seed, trial.cell, str(trial.fault))
    judge_all(streams, effects, trial.instances, result)
    settled = await deployment.settled()
    result.wrong = [*effects.complaints, *filter(None, [settled]), *deployment.died]
    result.wrong += deployment.exceptions()
    result.wrong += await judge_rollouts(deployment.urls()[0], rollouts, streams, tokenizer)
    watching.cancel()
    if trial.watch:
        result.wrong += sampler.growing()
    return result


def draw_stream(tokenizer: Tokenizer, trial: Trial, number: int, turn: int) -> Stream:
    """The stream that a client sends after `turn` others."""
    load, chance = trial.load, Random(f"{trial.seed} {number} {turn}")
    late = number >= load.streams
    tag = f"s{number}t{turn}w"
    seconds = chance.uniform(*(LATE_S if late else load.seconds))
    script = write_script(chance, tag, seconds, chance.randrange(*load.delay_ms))
    tokens = len(tokenizer.encode(script.written, add_special_tokens=False).ids) + 1
    wanted = Wanted(APIS[number % 3], number % 8 != 7, script, tokens)
    return Stream(tag, wanted, chance.randrange(8), late or turn > 0)


async def _all_opened(streams: Sequence[Stream], count: int) -> None:
    """Waits until every stream has begun, so that a fault meets them in progress on a slow machine,
    too."""
    async with asyncio.timeout(OPEN_S):
        while len(streams) < count or any(
            stream.wanted.stream and not stream.begun for stream in streams
        ):
            await asyncio.sleep(0.05)


def judge_early(stream: Stream, effects: Effects, frontends: int) -> None:
    """Judges a stream that is as it should be, so that its bytes need not be kept."""
    found = _judge(stream, effects, frontends)
    if found.verdict == "whole":
        stream.judgement = found
        stream.attempts.clear()


def judge_all(streams: Sequence[Stream], effects: Effects, frontends: int, result: Result) -> None:
    """Judges every stream and writes what came of them."""
    for stream in streams:
        found = stream.judgement or _judge(stream, effects, frontends)
        (result.new if stream.new else result.verdicts)[found.verdict] += 1
        result.pause_s = max(result.pause_s, found.pause_s)
        result.silence_s = max(result.silence_s, found.silence_s)
        fine = ("whole", "reconnected", "refused") if stream.new else ("whole", "reconnected")
        if found.verdict not in fine:
            kind = f"{stream.wanted.api} stream={stream.wanted.stream} new={stream.new}"
            result.notes.append(f"{stream.tag} {kind}: {found.verdict}: {found.why}"[:300])


def _judge(stream: Stream, effects: Effects, frontends: int) -> Judgement:
    tried = [(stream.frontend + number) % frontends for number in range(len(stream.attempts))]
    states = [effects.frontends.get(number, "serving") for number in tried]
    found = judge(stream.wanted, stream.attempts, states)
    if found.verdict == "refused" and not stream.new:
        return Judgement("lost", "refused before the fault")
    return found
