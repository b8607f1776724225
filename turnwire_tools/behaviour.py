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

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from schemas import subjects
from schemas.conversation import Call
from services.cli.common import CommandError, UsageError, read_text
from services.cli.instances import bus_defaults, running_instances
from services.cli.observer import observing
from services.cli.registry import Command
from services.cli.signals import run
from services.runtime.bus import Bus, Delivery
from services.runtime.config import BusConfig, Count, Positive
from services.runtime.config.loader import Sources
from turnwire_tools.tap import messages
from turnwire_tools.tap.turns import FollowedTurn, TurnFollower

MEASURES = ("turns", "calls")
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
    """Folder to copy for each run, which works in the copy; default: an empty one."""
    repeats: Count = 1
    """Runs of each task on each side."""
    timeout_s: Positive = 600.0
    """Seconds after which a run of the agent is ended."""


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
        tasks: A text file with one task a line; empty lines and those with # are left out.
        agent: After --, the agent's command; {task}, {url} and {side} in it are replaced.
    """
    lines = [line.strip() for line in read_text(tasks).splitlines()]
    listed = [line for line in lines if line and not line.startswith("#")]
    if not agent:
        raise UsageError("name the agent's command after --")
    if not listed:
        raise UsageError("there is no task")

    config = sources.load(BusConfig, bus_defaults(sources.env)).config
    buses: dict[str, str] = {}
    for instance in running_instances(sources.env):
        buses |= dict.fromkeys(instance.urls, instance.nats_url)
    counts = run(_run_all(listed, agent, flags, config, buses))
    Console().print(comparison(counts, flags.repeats))
    return 0


COMMAND = Command(behaviour, (BusConfig,))


def comparison(counts: Mapping[str, Sequence[Counter[str]]], repeats: int) -> Table:
    """Makes the table. `counts`: for each side, what each task took in all its runs."""
    table = Table(title=f"{len(counts['a'])} tasks, {repeats} times on each side")
    for column in ("mean of a run", "a", "b", "tasks with more, fewer, as many at b", "p"):
        table.add_column(column)
    for measure in MEASURES:
        a = [task[measure] for task in counts["a"]]
        b = [task[measure] for task in counts["b"]]
        differences = [after - before for before, after in zip(a, b, strict=True)]
        table.add_row(
            measure,
            f"{sum(a) / len(a) / repeats:.2f}",
            f"{sum(b) / len(b) / repeats:.2f}",
            _more_fewer_equal(differences),
            f"{sign_flip_p(differences):.4f}",
        )
    return table


def _more_fewer_equal(differences: Sequence[int]) -> str:
    more = sum(difference > 0 for difference in differences)
    fewer = sum(difference < 0 for difference in differences)
    return f"{more}, {fewer}, {len(differences) - more - fewer}"


def sign_flip_p(differences: Sequence[int]) -> float:
    """Returns the exact two-sided p of a sign-flip permutation test of paired differences: the
    share of all choices of their signs with a sum at least as far from 0. Without an effect, either
    sign is as likely as the other."""
    ways = Counter({0: 1})
    for difference in differences:
        more = Counter({total + difference: count for total, count in ways.items()})
        less = Counter({total - difference: count for total, count in ways.items()})
        ways = more + less
    observed = abs(sum(differences))
    extreme = sum(n for total, n in ways.items() if abs(total) >= observed)
    return extreme / float(2 ** len(differences))


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

    async def run(self, task: str, agent: Sequence[str], flags: BehaviourFlags) -> Counter[str]:
        """Runs the agent in a folder of its own, and counts its turns and calls."""
        words = [
            word.replace("{url}", self.url).replace("{side}", self.name).replace("{task}", task)
            for word in agent
        ]
        self._ended.clear()
        with tempfile.TemporaryDirectory(prefix="turnwire-") as folder, suppress(TimeoutError):
            if flags.directory is not None:
                shutil.copytree(flags.directory, folder, dirs_exist_ok=True)
            await _run_agent(words, folder, flags.timeout_s)

        await self.bus.flush()  # so that the last messages are here
        for _ in range(SETTLE_POLLS):
            if self._follower.unfinished:
                await asyncio.sleep(POLL_S)
        turns = [turn for turn in self._ended if turn.reason is not None]
        calls = sum(map(_calls_in, turns))
        return Counter(turns=len(turns), calls=calls)


def _calls_in(turn: FollowedTurn) -> int:
    return sum(isinstance(part, Call) for part in turn.written)


async def _run_agent(words: Sequence[str], folder: str, timeout_s: float) -> None:
    """Runs a command, and ends it and what it has started and left. Raises TimeoutError."""
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, stdin=null, stdout=null, start_new_session=True
    )
    try:
        await asyncio.wait_for(process.wait(), timeout_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _run_all(
    tasks: Sequence[str],
    agent: Sequence[str],
    flags: BehaviourFlags,
    config: BusConfig,
    buses: Mapping[str, str],
) -> Mapping[str, Sequence[Counter[str]]]:
    """Runs all tasks. `buses`: the URLs of the NATS servers of known servers. Raises CommandError,
    OSError."""
    counts: dict[str, list[Counter[str]]] = {}
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
            counts[name] = [Counter() for _ in tasks]

        for number in range(flags.repeats * len(tasks)):
            repeat, at = divmod(number, len(tasks))
            # Neither side is always the second.
            a_is_first = (repeat + at) % 2 == 0
            for side in sides if a_is_first else reversed(sides):
                counted = await side.run(tasks[at], agent, flags)
                counts[side.name][at] += counted
                print(f"task {at + 1} at {side.name}: {dict(counted)}", file=sys.stderr)
                if not any(task.total() for task in counts[side.name]):
                    raise CommandError(
                        f"the agent made no turn at {side.name}: does it use {side.url}?"
                    )
    return counts
