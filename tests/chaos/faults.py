"""What happens to a deployment under load: processes that are killed, stopped or terminated, and
come back."""

import asyncio
import time
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias, get_args

from tests.chaos.deployment import NATS, STAGES, Deployment
from tests.chaos.judge import Frontend
from tests.kit.stack import Child
from tests.kit.waiting import LIMIT_S

Action = Literal["kill", "stop", "term"]
ACTIONS: tuple[Action, ...] = get_args(Action)
DRAIN_S = 30.0
"""The default of `--drain-s`."""
BACK_S = 60.0


@dataclass
class Effects:
    """What the faults of a trial did."""

    start: float
    """When the trial began."""
    frontends: dict[int, Frontend] = field(default_factory=dict)
    """Number → frontend that was ended."""
    complaints: list[str] = field(default_factory=list)
    """What was not as it should be, apart from the streams."""


@dataclass(frozen=True)
class Fault:
    """One process is killed (SIGKILL), stopped (SIGSTOP) or terminated (SIGTERM), and back
    `outage_s` later."""

    action: Action
    stage: str
    which: int
    """Which instance."""
    at_s: float
    """From the start of the trial."""
    outage_s: float

    def __str__(self) -> str:
        return f"{self.action} {self.stage}[{self.which}] at {self.at_s:.1f} s for {self.outage_s:.1f} s"

    @property
    def cell(self) -> str:
        return f"{self.action} {self.stage}"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        """Does it; returns when every process is there again."""
        await sleep_until(effects.start + self.at_s)
        until = time.monotonic() + self.outage_s
        if self.stage == NATS:
            await self._disturb_nats(deployment, until)
        else:
            await self._disturb_child(deployment, until, effects)

    async def _disturb_nats(self, deployment: Deployment, until: float) -> None:
        nats = deployment.nats
        if self.action == "stop":
            nats.pause()
            await sleep_until(until)
            nats.resume()
            return
        await asyncio.to_thread(nats.kill if self.action == "kill" else nats.terminate)
        await sleep_until(until)
        await asyncio.to_thread(nats.start)

    async def _disturb_child(self, deployment: Deployment, until: float, effects: Effects) -> None:
        children = deployment.of(self.stage)
        number = self.which % len(children)
        child = children[number]
        if self.action == "stop":
            child.pause()
            await sleep_until(until)
            child.resume()
            return
        deployment.down.add(child)
        ended: Frontend = "broken"
        if self.action == "kill":
            await asyncio.to_thread(child.kill)
        elif await _terminate(child) < DRAIN_S:
            ended = "closed"
        if self.stage == "frontend" and effects.frontends.get(number) != "broken":
            effects.frontends[number] = ended
        await sleep_until(until)
        child.start()
        deployment.down.discard(child)


async def _terminate(child: Child) -> float:
    """Returns how long its drain took, in seconds."""
    began = time.monotonic()
    child.terminate()
    await asyncio.to_thread(child.wait, 2 * LIMIT_S + DRAIN_S)
    return time.monotonic() - began


@dataclass(frozen=True)
class Rolling:
    """Every instance of every stage is terminated and started again, one after the other, under
    steady load."""

    at_s: float = 2.0
    outage_s: float = 0.0
    cell = "rolling restart"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        await sleep_until(effects.start + self.at_s)
        for stage in STAGES:
            for number in range(len(deployment.of(stage))):
                await _and_settle(Fault("term", stage, number, 0.0, 0.0), deployment, effects)


@dataclass(frozen=True)
class RandomFaults:
    """One fault after the other, for `outage_s`. The first instance of each stage is stopped at
    most, never ended, so that its memory can be followed."""

    seed: str
    at_s: float
    outage_s: float
    cell = "random faults"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        await sleep_until(effects.start + self.at_s)
        chance, until = Random(self.seed), time.monotonic() + self.outage_s
        while time.monotonic() < until:
            stage = chance.choice((*STAGES, NATS))
            which = chance.randrange(deployment.instances)
            action = "stop" if which == 0 and stage != NATS else chance.choice(ACTIONS)
            fault = Fault(action, stage, which, 0.0, chance.uniform(1, 20))
            await _and_settle(fault, deployment, effects)
            await asyncio.sleep(chance.uniform(1, 10))


Disturbance: TypeAlias = Fault | Rolling | RandomFaults


async def _and_settle(fault: Fault, deployment: Deployment, effects: Effects) -> None:
    """Injects a fault at once. All processes must be among the living afterwards."""
    await fault.inject(deployment, effects)
    if wrong := await deployment.settled(2 * BACK_S, idle=False):
        effects.complaints.append(f"after {fault}: {wrong}")


async def sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
