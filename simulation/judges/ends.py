"""Judges how requests ended: without their answers only where the promises allow it
(docs/reliability.md)."""

import re
from collections.abc import Sequence
from itertools import product

from schemas.control import INNER_STAGES
from simulation.clients import SILENCE, Request
from simulation.faults import CUTTING, ENDING, FAILING, GRACE_S, Applied
from simulation.world import STAGES, World

SAMPLE_S = 0.25
WAIT_S = 30.0
"""How long a request that has not begun waits for a stage."""
MUCH_LOST = 0.4
"""The part of messages that is lost where a request may wait for all that time."""
DRAIN_S = 30.0
"""How long a process that is terminated goes on with its turns."""
STALE_S = 40.0
"""Time after which a NATS server may disconnect a client that does not answer: by its pings after
40 to 60 s, or earlier where it cannot write. A frontend's turns end then."""

_MISSING = re.compile(r"no (\w+) serves this model at the moment")


class Outages:
    """Samples which stages, or the bus, are down."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.clustered = len(world.servers) > 1
        self.samples: list[tuple[float, frozenset[str]]] = []
        self._sample()

    def _sample(self) -> None:
        world = self._world
        up = {running.stage for running in world.running.values() if world.is_ready(running)}
        down = {stage for stage in STAGES if stage not in up}
        cut = world.network.cut
        if all(
            server.machine.frozen or frozenset((name,)) in cut
            for name, server in world.servers.items()
        ):  # or there is none
            down.add("bus")
        self.samples.append((world.loop.now, frozenset(down)))
        world.loop.call_later(SAMPLE_S, self._sample, context=world.loop.system.context)

    def any(self, began: float, ended: float) -> bool:
        """Whether anything was down at some time between two times."""
        return any(down for at, down in self.samples if began <= at <= ended)

    def longest(self, stage: str, began: float, ended: float) -> float:
        """The longest time without a process of a stage, in seconds."""
        longest = current = 0.0
        for at, down in self.samples:
            if began <= at <= ended:
                current = current + SAMPLE_S if stage in down else 0.0
                longest = max(longest, current)
        return longest


class EndJudge:
    """Judges the ends of all requests of a simulation."""

    def __init__(self, applied: Sequence[Applied], outages: Outages, recovery_s: float) -> None:
        self._applied = applied
        self._outages = outages
        self._recovery_s = recovery_s

    def forbidden(self, request: Request) -> str:
        """Why the promises do not allow this end of a request; "" if they do."""
        near = [
            applied
            for applied in self._applied
            if applied.began <= request.ended and applied.until >= request.began
        ]
        own = [applied for applied in near if applied.name == request.frontend]
        for since, until in request.silences:
            if not any(applied.began <= until and applied.until >= since for applied in own):
                return f"no keep-alive for {until - since:.1f} s"
        match request.outcome:
            case "broken":
                ending = ("lose machine",) if request.problem == SILENCE else ENDING
                if not request.frontend or any(applied.fault.kind in ending for applied in own):
                    return ""
                starts = "connect call failed" in request.problem and _starting(near)
                return "" if starts else "no fault of its frontend"
            case "refused":
                return self._forbidden_refusal(request, near, own)
            case "error":
                if _MISSING.search(request.problem) and _starting(
                    self._applied
                ):  # not seen by a new frontend
                    return ""
                return self._forbidden_error(request, near)
        return ""

    def _forbidden_refusal(
        self, request: Request, near: Sequence[Applied], own: Sequence[Applied]
    ) -> str:
        if request.too_long and request.status == 400:
            return ""
        if request.status == 500:  # before the first event, an error of the turn is a status
            return self._forbidden_error(request, near)
        if self._refused_too_soon(request, lossy_s(request, near)):
            return "refused too soon"
        away = (
            any(applied.deadly for applied in own)
            or self._outages.any(request.began - 1.0, request.ended)
            or _bus(near)
        )
        if request.status in (503, 529) and away:
            return ""
        # A Response that is stored during an outage may be missing afterwards, or not have its end.
        lost = request.status == 400 and (
            "Previous response" in request.problem or "not ended" in request.problem
        )
        if lost and any(applied.began <= request.ended for applied in self._applied):
            return ""
        return "nothing was down"

    def _forbidden_error(self, request: Request, near: Sequence[Applied]) -> str:
        deadly = [applied for applied in near if applied.deadly and applied.stage != "frontend"]
        if any(applied.fault.kind in FAILING for applied in near) or len(deadly) >= 3:
            return ""
        # A server of a cluster that fails cuts off those of any stage that are connected to it.
        several = [
            applied
            for applied in near
            if self._outages.clustered and applied.fault.kind in CUTTING and applied.lasts
        ]
        workers = [applied for applied in deadly if applied.stage == "worker"] + several
        parsers = [applied for applied in deadly if applied.stage == "parser"] + several
        for one, other in product(workers, parsers):
            if one is not other and one.began <= other.until and other.began <= one.until:
                return ""
        waits_s = self._recovery_s if request.answer.blocks else min(WAIT_S, self._recovery_s)
        since = request.began - (0.0 if request.answer.blocks else self._recovery_s) - GRACE_S
        longest = max(
            self._outages.longest(stage, since, request.ended) for stage in (*INNER_STAGES, "bus")
        )
        own = [applied for applied in near if applied.name == request.frontend]
        if any(
            applied.fault.kind == "terminate" and request.ended >= applied.began + DRAIN_S - 1.0
            for applied in own
        ):
            return ""
        away_s = max(
            (applied.ended - applied.began for applied in own if applied.deadly), default=0.0
        )
        if (
            longest + lossy_s(request, near) >= waits_s - GRACE_S
            or away_s >= min(waits_s, STALE_S) - GRACE_S
        ):
            return ""
        return "no pair of faults, no three deaths, no stage that was away for long"

    def _refused_too_soon(self, request: Request, lossy_s: float) -> bool:
        """Whether a frontend did not wait, or not long enough, for a stage that it had seen within
        `recovery_s`."""
        missing = _MISSING.search(request.problem)
        if missing is None or _starting(self._applied):  # a new frontend has not seen the stage
            return False
        longest = self._outages.longest(
            missing[1], request.began - self._recovery_s - GRACE_S, request.ended
        )
        waited = request.ended - request.began >= WAIT_S - 1.0
        return (
            longest + (lossy_s if waited else 0.0)
            < (WAIT_S if waited else self._recovery_s) - GRACE_S
        )


def lossy_s(request: Request, near: Sequence[Applied]) -> float:
    """How long a request lasted while much of what its stages send each other was lost, in
    seconds."""
    losing = [
        applied
        for applied in near
        if applied.fault.kind == "lose messages" and applied.fault.amount >= MUCH_LOST
    ]
    spans = [
        min(applied.ended, request.ended) - max(applied.began, request.began) for applied in losing
    ]
    return max((0.0, *spans))


def _bus(near: Sequence[Applied]) -> bool:
    return any(not applied.name for applied in near)


def _starting(near: Sequence[Applied]) -> bool:
    """Whether a frontend was being started, so that nobody listened yet."""
    return any(applied.stage == "frontend" for applied in near)
