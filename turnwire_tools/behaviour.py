"""`turnwire behaviour`: runs the same tasks on two servers, and tests whether an agent behaves
differently on them.

A server may answer every request well and still change what an agent does: by a template variable,
a parser, a model's profile. That shows in the turns and calls that a task takes, which are read
from the bus as for trajectories. A permutation test finds how likely such differences are by
chance.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from schemas import subjects
from schemas.conversation import Call
from services.cli.common import CommandError, UsageError, read_text, replace_file
from services.cli.instances import bus_defaults, running_instances
from services.cli.observer import observing
from services.cli.registry import BUS_SETTINGS, Command
from services.cli.signals import run
from services.runtime.config.base import Count, Positive
from services.runtime.config.loader import Sources
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Bus, Delivery
from turnwire_tools.tap import messages
from turnwire_tools.tap.turns import FollowedTurn, TurnFollower

MEASURES = ("turns", "calls")
TASK_FILE = "task.txt"
FILES = "files"
"""The task's text, and what its runs begin with, in a task's own folder."""
SHOWN_P = 0.0001
"""A smaller p is shown as being smaller: it is never 0."""
POLL_S = 0.05
SETTLE_POLLS = 100
"""How often the last events of a run are waited for after the agent has ended."""


@dataclass(frozen=True, kw_only=True)
class BehaviourFlags:
    """The flags of `turnwire behaviour`."""

    a: str
    """One side: the URL of a `turnwire up` on this machine, or `URL,NATS_URL` with the server's
    bus."""
    b: str
    """The other side."""
    directory: Path | None = None
    """Folder to copy for each run, which works in the copy; default: an empty one. Not where each
    task has a folder of its own."""
    into: Path | None = None
    """File for the result, as JSON: written after each run, and not over an earlier result."""
    repeats: Count = 1
    """Runs of each task on each side."""
    timeout_s: Positive = 600.0
    """Seconds after which a run of the agent is ended."""


@dataclass(frozen=True)
class Task:
    """One task."""

    name: str
    text: str
    folder: Path | None
    """Folder that is copied for each run; None: the run begins in an empty one."""


class Run(Struct, frozen=True):
    """What one run of the agent took."""

    task: str
    """The task's name."""
    side: str
    repeat: int
    """1, 2, 3 …"""
    turns: int
    calls: int
    seconds: float
    status: int | None
    """The agent's exit status; None: it was ended after `--timeout-s`."""


class Comparison(Struct, frozen=True):
    """The comparison of one measure over all tasks."""

    measure: str
    mean_a: float
    """What a run took on average."""
    mean_b: float
    more: int
    """Tasks with more at b, with fewer, and with as many; their runs are added up."""
    fewer: int
    equal: int
    p: float


class ResultFile(Struct, frozen=True):
    """The result file."""

    a: str
    b: str
    agent: list[str]
    repeats: int
    tasks: dict[str, str]
    """Names and texts."""
    runs: list[Run]
    comparisons: list[Comparison]
    """Empty until all runs have ended."""


def behaviour(
    sources: Sources,
    tasks: Path,
    /,
    *agent: str,
    flags: Annotated[BehaviourFlags, Parameter(name="*")],
) -> int:
    """Runs each task with an agent on two servers, and compares the turns and calls that it takes.

    Nothing else may use the servers meanwhile.

    Args:
        tasks: A text file with one task a line; empty lines and those with # are left out. Or a
            folder with a folder for each task: its task.txt is the task, and its folder files, if
            it has one, is copied for each run.
        agent: After --, the agent's command; {task}, {url} and {side} in it are replaced.
    """
    if not agent:
        raise UsageError("name the agent's command after --")
    if flags.into is not None and flags.into.exists():
        raise UsageError(f"{flags.into} exists already")
    listed = read_tasks(tasks, flags.directory)
    if not listed:
        raise UsageError("there is no task")

    config = sources.load(BusConfig, bus_defaults(sources.env)).config
    buses: dict[str, str] = {}
    for instance in running_instances(sources.env):
        buses |= dict.fromkeys(instance.urls, instance.nats_url)
    runs = run(_run_all(listed, agent, flags, config, buses))
    comparisons = [compare(listed, runs, measure) for measure in MEASURES]
    write_result(listed, agent, flags, runs, comparisons)
    Console().print(as_table(comparisons, f"{len(listed)} tasks, {flags.repeats} times"))
    return 0


COMMAND = Command(behaviour, (BusConfig,), essential=BUS_SETTINGS)


def read_tasks(source: Path, directory: Path | None) -> list[Task]:
    """Reads the tasks of a file, which all begin in `directory`, or of a folder with a folder for
    each. Raises UsageError, CommandError."""
    if not source.is_dir():
        lines = [line.strip() for line in read_text(source).splitlines()]
        texts = [line for line in lines if line and not line.startswith("#")]
        return [Task(str(at), text, directory) for at, text in enumerate(texts, 1)]

    if directory is not None:
        raise UsageError("--directory is for tasks of a file: here each has a folder of its own")
    folders = [path for path in sorted(source.iterdir()) if path.is_dir()]
    tasks = []
    for folder in folders:
        if folder.name.startswith("."):
            continue
        text = read_text(folder / TASK_FILE).strip()
        if not text:
            raise UsageError(f"{folder / TASK_FILE} is empty")
        files = folder / FILES
        tasks.append(Task(folder.name, text, files if files.is_dir() else None))
    return tasks


def compare(tasks: Sequence[Task], runs: Sequence[Run], measure: str) -> Comparison:
    """Compares a measure of both sides: its mean over the runs, and its sum for each task."""
    sums = {side: Counter[str]() for side in ("a", "b")}
    for result in runs:
        sums[result.side][result.task] += getattr(result, measure)
    differences = [sums["b"][task.name] - sums["a"][task.name] for task in tasks]
    of_a_side = len(runs) / 2
    return Comparison(
        measure=measure,
        mean_a=sums["a"].total() / of_a_side,
        mean_b=sums["b"].total() / of_a_side,
        more=sum(difference > 0 for difference in differences),
        fewer=sum(difference < 0 for difference in differences),
        equal=differences.count(0),
        p=sign_flip_p(differences),
    )


def as_table(comparisons: Sequence[Comparison], title: str) -> Table:
    """Makes the table that the command prints."""
    table = Table(title=f"{title} on each side")
    for column in ("mean of a run", "a", "b", "tasks with more, fewer, as many at b", "p"):
        table.add_column(column)
    for comparison in comparisons:
        table.add_row(
            comparison.measure,
            f"{comparison.mean_a:.2f}",
            f"{comparison.mean_b:.2f}",
            f"{comparison.more}, {comparison.fewer}, {comparison.equal}",
            f"< {SHOWN_P}" if comparison.p < SHOWN_P else f"{comparison.p:.4f}",
        )
    return table


def write_result(
    tasks: Sequence[Task],
    agent: Sequence[str],
    flags: BehaviourFlags,
    runs: Sequence[Run],
    comparisons: Sequence[Comparison] = (),
) -> None:
    """Writes the file of `--into`, if there is one. Raises OSError."""
    if flags.into is None:
        return
    result = ResultFile(
        a=flags.a,
        b=flags.b,
        agent=list(agent),
        repeats=flags.repeats,
        tasks={task.name: task.text for task in tasks},
        runs=list(runs),
        comparisons=list(comparisons),
    )
    replace_file(flags.into, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def sign_flip_p(differences: Sequence[int]) -> float:
    """The exact two-sided p of a sign-flip permutation test of paired differences: the share of all
    choices of their signs with a sum at least as far from 0. Without an effect, either sign is as
    likely as the other. It is at least 2 ** (1 - number of differences), and never 0."""
    ways = Counter({0: 1})
    for difference in differences:
        more = Counter({total + difference: count for total, count in ways.items()})
        less = Counter({total - difference: count for total, count in ways.items()})
        ways = more + less
    observed = abs(sum(differences))
    extreme = sum(n for total, n in ways.items() if abs(total) >= observed)
    share: float = extreme / 2 ** len(differences)
    return max(share, sys.float_info.min)


class Side:
    """One server, and the turns on its bus."""

    def __init__(self, name: str, url: str, bus: Bus) -> None:
        self.name = name
        self.url = url
        self.bus = bus
        self._follower = TurnFollower()
        self._ended: list[FollowedTurn] = []

    def take(self, delivery: Delivery) -> None:
        """Takes a message of the bus."""
        self._ended += self._follower.take(
            messages.of_turn(delivery.subject, delivery.data), time.time()
        )

    async def run(
        self, task: Task, repeat: int, agent: Sequence[str], flags: BehaviourFlags
    ) -> Run:
        """Runs the agent in a folder of its own, and counts its turns and calls."""
        words = [
            word.replace("{url}", self.url)
            .replace("{side}", self.name)
            .replace("{task}", task.text)
            for word in agent
        ]
        self._ended.clear()
        status: int | None = None
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="turnwire-") as folder, suppress(TimeoutError):
            if task.folder is not None:
                shutil.copytree(task.folder, folder, dirs_exist_ok=True)
            status = await _run_agent(words, folder, flags.timeout_s)
        seconds = time.monotonic() - begin

        await self.bus.flush()  # so that the last messages are here
        for _ in range(SETTLE_POLLS):
            if self._follower.unfinished:
                await asyncio.sleep(POLL_S)
        turns = [turn for turn in self._ended if turn.reason is not None]
        calls = sum(map(_calls_in, turns))
        return Run(
            task=task.name,
            side=self.name,
            repeat=repeat,
            turns=len(turns),
            calls=calls,
            seconds=round(seconds, 3),
            status=status,
        )


def _calls_in(turn: FollowedTurn) -> int:
    return sum(isinstance(part, Call) for part in turn.written)


async def _run_agent(words: Sequence[str], folder: str, timeout_s: float) -> int:
    """Runs a command, and ends it and what it has started and left. Returns its exit status. Raises
    TimeoutError."""
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, stdin=null, stdout=null, start_new_session=True
    )
    try:
        return await asyncio.wait_for(process.wait(), timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _run_all(
    tasks: Sequence[Task],
    agent: Sequence[str],
    flags: BehaviourFlags,
    config: BusConfig,
    buses: Mapping[str, str],
) -> list[Run]:
    """Runs all tasks. `buses`: the URLs of the NATS servers of known servers. Raises CommandError,
    OSError."""
    runs: list[Run] = []
    write_result(tasks, agent, flags, runs)
    async with AsyncExitStack() as opened:
        sides = []
        for name, server in (("a", flags.a), ("b", flags.b)):
            url, _, nats_url = server.partition(",")
            url = url.rstrip("/")
            known_bus = buses.get(url, config.nats_url)
            bus_config = replace(config, nats_url=nats_url.rstrip("/") or known_bus)
            bus = await opened.enter_async_context(observing(bus_config, "behaviour"))
            side = Side(name, url, bus)
            await bus.subscribe(subjects.ALL, side.take)
            await bus.flush()
            sides.append(side)

        for number in range(flags.repeats * len(tasks)):
            repeat, at = divmod(number, len(tasks))
            # Neither side is always the second.
            a_is_first = (repeat + at) % 2 == 0
            for side in sides if a_is_first else reversed(sides):
                last = await side.run(tasks[at], repeat + 1, agent, flags)
                runs.append(last)
                write_result(tasks, agent, flags, runs)
                counts = {"turns": last.turns, "calls": last.calls}
                print(f"task {last.task} at {side.name}: {counts}", file=sys.stderr)
                if not any(one.turns for one in runs if one.side == side.name):
                    raise CommandError(
                        f"the agent made no turn at {side.name}: does it use {side.url}?"
                    )
    return runs
