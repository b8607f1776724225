"""Disturbances other than a single fault: rolling restarts, clock jumps, a full disk, memory
limits, and many faults in a row."""

import asyncio
import contextlib
import resource
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp

from tests.chaos.deployment import NATS, STAGES, Deployment
from tests.chaos.faults import ACTIONS, Effects, Fault, sleep_until
from tests.kit.stack import MODEL

BACK_S = 60.0
FILL_BYTES = 1 << 20
LARGE_TURN = 20_000
"""Words, and so tokens, in the prompt and in the output."""


@dataclass(frozen=True)
class Rolling:
    """Every instance of every stage is terminated and started again, one after the other, under
    steady load."""

    at_s: float = 2.0
    outage_s: float = 0.0
    cell = "rolling restart"

    def __str__(self) -> str:
        return self.cell

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        await sleep_until(effects.start + self.at_s)
        for stage in STAGES:
            for number in range(len(deployment.of(stage))):
                now = time.monotonic() - effects.start
                await Fault("term", stage, number, now, 0.0).inject(deployment, effects)
                if wrong := await deployment.settled(BACK_S, idle=False):
                    effects.complaints.append(f"after the restart of {stage} {number}: {wrong}")


@dataclass(frozen=True)
class ClockJump:
    """The wall clock of one stage, or of all, jumps and stays so. The monotonic clock goes on, as
    it does on a machine.

    Processes see it through `wall_clock.c`, which they preload; nats-server, which asks the kernel
    itself, keeps the true time, so that the clocks of bus and services differ too.
    """

    stage: str
    """"": all."""
    seconds: int
    at_s: float
    outage_s: float = 10.0
    cell = "clock jump"

    def __str__(self) -> str:
        return f"clock {self.seconds:+} s of {self.stage or 'every stage'} at {self.at_s:.1f} s"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        """See `Disturbance.inject`. The clocks jump back at the end."""
        await sleep_until(effects.start + self.at_s)
        stages = [stage for stage in STAGES if not self.stage or stage == self.stage]
        for stage in stages:
            set_clock(deployment.directory, stage, self.seconds)
        await asyncio.sleep(self.outage_s)
        for stage in stages:
            set_clock(deployment.directory, stage, 0)


def set_clock(directory: Path, stage: str, seconds: int) -> None:
    """Shifts the wall clock of a stage's processes, in place: they have the file mapped."""
    file = directory / f"clock-{stage}"
    with file.open("r+b" if file.exists() else "xb") as opened:
        opened.write(struct.pack("q", seconds))


def clock_environments(directory: Path) -> dict[str, dict[str, str]]:
    """Environments under which a stage's clock can be set. Raises CalledProcessError or OSError
    without a compiler."""
    library = directory / "wall_clock.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O2", "-o", library, Path(__file__).with_name("wall_clock.c")],
        check=True,
    )
    for stage in STAGES:
        set_clock(directory, stage, 0)
    return {
        stage: {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(directory / f"clock-{stage}")}
        for stage in STAGES
    }


@dataclass(frozen=True)
class FullDisk:
    """The file system of JetStream's store is full for a while. nats-server then switches JetStream
    off until it is started again, which happens when there is room; stored Responses must work
    after that."""

    store: Path
    """A directory on a small file system of its own."""
    at_s: float
    outage_s: float
    cell = "full disk under JetStream"

    def __str__(self) -> str:
        return f"{self.cell} at {self.at_s:.1f} s for {self.outage_s:.1f} s"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        await sleep_until(effects.start + self.at_s)
        filler = self.store / "filler"
        until = time.monotonic() + self.outage_s
        with filler.open("wb", buffering=0) as file:
            while time.monotonic() < until:
                with contextlib.suppress(OSError):  # full
                    while file.write(bytes(FILL_BYTES)):
                        pass
                await asyncio.sleep(0.2)
        filler.unlink()
        await Fault("term", NATS, 0, 0.0, 0.0).inject(deployment, effects)
        if wrong := await _stored_response(deployment):
            effects.complaints.append(wrong)


async def _stored_response(deployment: Deployment) -> str:
    """Stores a Response on one frontend and reads it from another. Returns what went wrong, or
    ""."""
    urls, wrong = deployment.urls(), ""
    deadline = time.monotonic() + BACK_S
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < deadline:
            body = {"model": MODEL, "input": "[[say]]Hm.\n</think>\n\nKept.[[/say]]"}
            async with http.post(f"{urls[0]}/v1/responses", json=body) as response:
                made = await response.json()
                if response.status != 200:
                    wrong = f"no Response after the disk had room again: {made}"
                    continue
            async with http.get(f"{urls[-1]}/v1/responses/{made['id']}") as response:
                if response.status == 200:
                    return ""
                wrong = f"a Response stored after the disk had room again cannot be read: {await response.text()}"
            await asyncio.sleep(1)
    return wrong


@dataclass(frozen=True)
class MemoryLimit:
    """One process gets no more memory (RLIMIT_AS) for a while, in which large turns need some. It
    may end, as if killed; it may not go on broken."""

    stage: str
    which: int
    at_s: float
    outage_s: float

    def __str__(self) -> str:
        return f"{self.cell}[{self.which}] at {self.at_s:.1f} s for {self.outage_s:.1f} s"

    @property
    def cell(self) -> str:
        return f"no more memory for {self.stage}"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        await sleep_until(effects.start + self.at_s)
        children = deployment.of(self.stage)
        number = self.which % len(children)
        child = children[number]
        pid = child.process.pid
        deployment.down.add(child)
        effects.end_frontend(child, number, "broken")
        logged = child.log.stat().st_size
        _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used, hard))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.outage_s):
                await _send_large_turns(deployment)
        if child.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
        if b"process.failed" in child.log.read_bytes()[logged:]:
            await asyncio.to_thread(child.process.wait)  # it takes leave of the others first
        if child.process.poll() is not None:
            child.start()
        deployment.down.discard(child)


async def _send_large_turns(deployment: Deployment) -> None:
    """Sends requests until it is cancelled. Every stage needs memory for their turns; their answers
    do not matter."""
    body = {"model": MODEL, "input": f"[[say]]{'word ' * LARGE_TURN}[[/say]]"}

    async def one(http: aiohttp.ClientSession, url: str) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.post(f"{url}/v1/responses", json=body) as response:
                await response.read()

    async with aiohttp.ClientSession() as http:
        while True:
            await asyncio.gather(*(one(http, url) for url in deployment.urls()))
            await asyncio.sleep(0.1)


@dataclass(frozen=True)
class RandomFaults:
    """One fault after the other, for `outage_s`. The first instance of each stage is stopped at
    most, never ended, so that its memory can be followed."""

    seed: str
    at_s: float
    outage_s: float
    longest_s: float = 20.0
    cell = "random faults"

    def __str__(self) -> str:
        return f"{self.cell} for {self.outage_s:.0f} s, seed {self.seed}"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        await sleep_until(effects.start + self.at_s)
        chance, until = Random(self.seed), time.monotonic() + self.outage_s
        while time.monotonic() < until:
            stage = chance.choice((*STAGES, NATS))
            which = chance.randrange(deployment.instances)
            action = "stop" if which == 0 and stage != NATS else chance.choice(ACTIONS)
            now = time.monotonic() - effects.start
            await Fault(action, stage, which, now, chance.uniform(1, self.longest_s)).inject(
                deployment, effects
            )
            if wrong := await deployment.settled(2 * BACK_S, idle=False):
                effects.complaints.append(f"after {action} {stage} {which}: {wrong}")
            await asyncio.sleep(chance.uniform(1, 10))
