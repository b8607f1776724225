"""A process that is killed, stopped or terminated, and comes back."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from tests.chaos.deployment import NATS, Deployment
from tests.chaos.judge import Frontend
from tests.kit.stack import Child
from tests.kit.waiting import LIMIT_S

Action = Literal["kill", "stop", "term"]
ACTIONS: tuple[Action, ...] = get_args(Action)
DRAIN_S = 30.0
"""The default of `--drain-s`."""


@dataclass
class Effects:
    """What the faults of a trial did."""

    start: float
    """When the trial began."""
    frontends: dict[int, Frontend] = field(default_factory=dict)
    """Number → frontend that was ended."""
    complaints: list[str] = field(default_factory=list)
    """What was not as it should be, apart from the streams."""

    def end_frontend(self, child: Child, number: int, how: Frontend) -> None:
        """Notes that connections to this process may break, or may not be accepted."""
        if child.stage == "frontend" and self.frontends.get(number) != "broken":
            self.frontends[number] = how


class Disturbance(Protocol):
    """Something that happens to a deployment under load. It is pickled, and its text names it with
    all that was drawn."""

    @property
    def cell(self) -> str:
        """The row of the table."""
        ...

    @property
    def at_s(self) -> float:
        """From the start of the trial."""
        ...

    @property
    def outage_s(self) -> float:
        """About how long it takes."""
        ...

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        """Does it; returns when it is over, and every process is there again."""
        ...


@dataclass(frozen=True)
class Fault:
    """One process is killed (SIGKILL), stopped (SIGSTOP) or terminated (SIGTERM), and back
    `outage_s` later."""

    action: Action
    stage: str
    which: int
    """Which instance."""
    at_s: float
    outage_s: float

    def __str__(self) -> str:
        return f"{self.action} {self.stage}[{self.which}] at {self.at_s:.1f} s for {self.outage_s:.1f} s"

    @property
    def cell(self) -> str:
        return f"{self.action} {self.stage}"

    async def inject(self, deployment: Deployment, effects: Effects) -> None:
        await sleep_until(effects.start + self.at_s)
        until = time.monotonic() + self.outage_s
        if self.stage == NATS:
            await self._nats(deployment, until)
        else:
            children = deployment.of(self.stage)
            number = self.which % len(children)
            await self._child(deployment, children[number], number, until, effects)

    async def _nats(self, deployment: Deployment, until: float) -> None:
        nats = deployment.nats
        if self.action == "stop":
            nats.pause()
            await sleep_until(until)
            nats.resume()
            return
        await asyncio.to_thread(nats.kill if self.action == "kill" else nats.terminate)
        await sleep_until(until)
        await asyncio.to_thread(nats.start)

    async def _child(
        self, deployment: Deployment, child: Child, number: int, until: float, effects: Effects
    ) -> None:
        began = time.monotonic()
        if self.action == "stop":
            child.pause()
            await sleep_until(until)
            child.resume()
            return
        deployment.down.add(child)
        if self.action == "kill":
            effects.end_frontend(child, number, "broken")
            await asyncio.to_thread(child.kill)
        else:
            effects.end_frontend(child, number, "closed")
            child.terminate()
            await asyncio.to_thread(child.wait, 2 * LIMIT_S + DRAIN_S)
            if time.monotonic() - began >= DRAIN_S:
                effects.end_frontend(child, number, "broken")
        await sleep_until(until)
        child.start()
        deployment.down.discard(child)


async def sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
