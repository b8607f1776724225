"""`turnwire behaviour`: runs the same tasks on two servers, and tests whether an agent behaves differently on them.

A server may answer every request well and still change what an agent does: by a template variable, a parser, a model's
profile. That shows in the turns and calls that a task takes, which are read from the bus as for trajectories. A
permutation test finds how likely such differences are by chance.
"""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from schemas import subjects
from schemas.conversation import Call
from services.cli.common import CommandError, UsageError, read_text
from services.cli.instances import Instance, bus_defaults, running_instances
from services.cli.observer import observing
from services.cli.registry import Command
from services.cli.signals import run
from services.runtime.bus import Delivery
from services.runtime.config import BusConfig, Count, Positive
from services.runtime.config.loader import Sources
from turnwire_tools.tap import messages
from turnwire_tools.tap.turns import FollowedTurn, TurnFollower

MEASURES = ("turns", "calls")
POLL_S = 0.05
SETTLE_POLLS = 100
"""How often the last events of a run are waited for after the agent has ended."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of `turnwire behaviour`."""

    a: str
    """One side: the URL of a running server, `URL,NATS_URL` with its bus, or `up` and flags, for a `turnwire up` of its
    own."""
    b: str
    """The other side."""
    directory: Path | None = None
    """Folder of which each run gets a copy to work in; default: an empty one."""
    repeats: Count = 1
    """Runs of each task on each side."""
    timeout_s: Positive = 600.0
    """Seconds after which a run of the agent is ended."""


def behaviour(sources: Sources, tasks: Path, /, *agent: str, flags: Annotated[Flags, Parameter(name="*")]) -> int:
    """Runs each task with an agent on two servers, and compares the turns and calls that it takes.

    Nothing else may use the servers meanwhile.

    Args:
        tasks: A text file with one task a line; empty lines and those with # are left out.
        agent: After --, the agent's command; {task}, {url} and {side} in it are replaced.
    """
    lines = [line.strip() for line in read_text(tasks).splitlines()]
    listed = [line for line in lines if line and not line.startswith("#")]
    if not listed or not agent:
        raise UsageError("there is no task" if agent else "name the agent's command after --")
    config = sources.load(BusConfig, bus_defaults(sources.env)).config
    counts = run(_run_all(listed, agent, flags, config, list(running_instances(sources.env))))
    Console().print(comparison(counts, flags.repeats))
    return 0


COMMAND = Command(behaviour, (BusConfig,))


def comparison(counts: Mapping[str, Sequence[Counter[str]]], repeats: int) -> Table:
    """Makes the table. `counts`: for each side, what each task took in all its runs."""
    table = Table(title=f"{len(counts['a'])} tasks, {repeats} times on each side")
    for column in ("mean of a run", "a", "b", "tasks with more, fewer, as many at b", "p"):
        table.add_column(column)
    for measure in MEASURES:
        a, b = ([task[measure] for task in counts[side]] for side in "ab")
        differences = [after - before for before, after in zip(a, b, strict=True)]
        signs = Counter((difference > 0) - (difference < 0) for difference in differences)
        means = (f"{sum(side) / len(side) / repeats:.2f}" for side in (a, b))
        tasks = ", ".join(str(signs[sign]) for sign in (1, -1, 0))
        table.add_row(measure, *means, tasks, f"{sign_flip_p(differences):.4f}")
    return table


def sign_flip_p(differences: Sequence[int]) -> float:
    """Returns the exact two-sided p of a sign-flip permutation test of paired differences: the share of all choices of
    their signs with a sum at least as far from 0. Without an effect, either sign is as likely as the other."""
    ways = Counter({0: 1})
    for difference in differences:
        more = Counter({total + difference: n for total, n in ways.items()})
        ways = more + Counter({total - difference: n for total, n in ways.items()})
    observed = abs(sum(differences))
    extreme = sum(n for total, n in ways.items() if abs(total) >= observed)
    return extreme / float(2 ** len(differences))


class Side:
    """One server, and the turns on its bus."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self._follower = TurnFollower()
        self._ended: list[FollowedTurn] = []

    def take(self, delivery: Delivery) -> None:
        """Takes a message of the bus."""
        if messages.kind_of(delivery.subject) in messages.TURN_KINDS:
            with suppress(msgspec.MsgspecError, ValueError):
                self._ended += self._follower.take(messages.decode(delivery.subject, delivery.data), time.time())

    async def run(self, task: str, agent: Sequence[str], flags: Flags) -> Counter[str]:
        """Runs the agent in a folder of its own, and counts its turns and calls."""
        words = [word.replace("{url}", self.url).replace("{side}", self.name).replace("{task}", task) for word in agent]
        self._ended.clear()
        with tempfile.TemporaryDirectory(prefix="turnwire-") as folder, suppress(TimeoutError):
            if flags.directory is not None:
                shutil.copytree(flags.directory, folder, dirs_exist_ok=True)
            null = asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(
                *words, cwd=folder, stdin=null, stdout=null, start_new_session=True
            )
            try:
                await asyncio.wait_for(process.wait(), flags.timeout_s)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what the agent has started and left
                await process.wait()
        for _ in range(SETTLE_POLLS):
            if self._follower.unfinished:
                await asyncio.sleep(POLL_S)
        turns = [turn for turn in self._ended if turn.reason is not None]
        calls = [part for turn in turns for part in turn.written if isinstance(part, Call)]
        return Counter(turns=len(turns), calls=len(calls))


async def _run_all(
    tasks: Sequence[str], agent: Sequence[str], flags: Flags, config: BusConfig, instances: Sequence[Instance]
) -> Mapping[str, Sequence[Counter[str]]]:
    counts = {name: [Counter[str]() for _ in tasks] for name in "ab"}
    async with AsyncExitStack() as opened:
        sides = []
        for name, server in (("a", flags.a), ("b", flags.b)):
            url, nats_url = await opened.enter_async_context(_serving(server, config.nats_url, instances))
            sides.append(side := Side(name, url))
            bus = await opened.enter_async_context(observing(replace(config, nats_url=nats_url), "behaviour"))
            await bus.subscribe(subjects.ALL, side.take)
            await bus.flush()
        for number in range(flags.repeats * len(tasks)):
            repeat, at = divmod(number, len(tasks))
            for side in sides if (repeat + at) % 2 == 0 else reversed(sides):  # neither side is always the second
                counted = await side.run(tasks[at], agent, flags)
                counts[side.name][at] += counted
                print(f"task {at + 1} at {side.name}: {dict(counted)}", file=sys.stderr)
                if not any(task.total() for task in counts[side.name]):
                    raise CommandError(f"the agent made no turn at {side.name}: does it use {side.url}?")
    return counts


@asynccontextmanager
async def _serving(server: str, nats_url: str, instances: Sequence[Instance]) -> AsyncIterator[tuple[str, str]]:
    """Yields the URLs of a side's server and bus. Raises CommandError, OSError."""
    if server.partition(" ")[0] != "up":
        url, _, own = (part.rstrip("/") for part in server.partition(","))
        yield url, own or next((one.nats_url for one in instances if url in one.urls), nats_url)
        return
    with tempfile.TemporaryDirectory(prefix="turnwire-") as folder:
        ready = Path(folder, "ready.json")
        command = [sys.executable, "-m", "services.cli.main", *shlex.split(server), "--port=0", f"--ready-file={ready}"]
        environment = {"TURNWIRE_LOG_LEVEL": "warning", **os.environ}
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, env=environment)
        try:
            while not ready.exists():  # noqa: ASYNC240 - a stat of a local file
                if process.returncode is not None:
                    raise CommandError(f"`turnwire {server}` ended with status {process.returncode}")
                await asyncio.sleep(POLL_S)
            instance = msgspec.json.decode(ready.read_bytes(), type=Instance)  # noqa: ASYNC240
            yield instance.url, instance.nats_url
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
