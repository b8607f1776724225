"""Draws faults from a seed and applies them: to processes, to the network, to the bus and its
store, to engines.

A fault has a beginning and an end. Killed processes are started again, as `turnwire up` and
Kubernetes do. Half of the seeds have faults at times of the load, the others when few turns are
left: what is lost there shows, because no later message covers it. Some faults wait until a rare
branch of the services is reached: they hit a recovery in its middle.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Literal, TypeAlias

from schemas import subjects
from simulation import reach
from simulation.loop import running_machine
from simulation.world import STAGES, Running, World

Kind: TypeAlias = Literal[
    "kill",
    "lose machine",
    "freeze",
    "terminate",
    "start",
    "start other protocol",
    "cut",
    "slow network",
    "slow loop",
    "clock",
    "engine fails",
    "engine dies",
    "engine hangs",
    "engine lies",
    "freeze bus",
    "cut bus",
    "kill bus",
    "lose messages",
    "empty bucket",
    "remove bucket",
    "no leader",
    "full disk",
]
PROCESS_KINDS: Sequence[Kind] = (
    *(
        "kill",
        "kill",
        "kill",
        "freeze",
        "freeze",
        "freeze",
        "terminate",
        "cut",
        "cut",
        "lose machine",
    ),
    *("start", "start other protocol"),
    *("slow network", "slow loop", "clock"),
)
TARGETS = (*STAGES, "worker", "parser", "frontend")
"""The stages of processes that are hit: those with open turns more often."""
ENGINE_KINDS: Sequence[Kind] = ("engine fails", "engine dies", "engine hangs")
BUS_KINDS: Sequence[Kind] = (
    *("freeze bus", "cut bus", "kill bus", "kill bus"),
    *("lose messages", "lose messages", "lose messages", "lose messages"),
)
LIE_CHANCES = 0.02, 0.1, 0.3
"""The part of a server's events that it lies about."""
REPLIES = "reply"
PARTNERS: Mapping[str, tuple[str, str]] = {
    "parser": ("worker", "a turn moves to another parser"),
    "worker": ("parser", "a parser hands back the turns of a worker that was lost"),
}
"""Stage → the stage that has the same turns, and the branch with which that one begins to recover
them."""
SUBJECTS = (
    "tok",
    "tok",
    "evt",
    "evt",
    "credit",
    "replay",
    "cancel",
    "beat",
    "turn",
    "gen",
    "resp",
    REPLIES,
)
"""The third words of subjects, and the replies to requests. Half of the faults that lose messages
lose those of one kind only."""
STORE_KINDS: Sequence[Kind] = ("empty bucket", "remove bucket", "no leader", "full disk")
DEADLY: frozenset[Kind] = frozenset(
    ("kill", "lose machine", "freeze", "cut", "terminate", "engine dies")
)
"""Kinds after which others may take a process for dead."""
ENDING: frozenset[Kind] = frozenset(("kill", "lose machine", "terminate"))
"""Kinds that end a process, with its connections."""
LOSING: frozenset[Kind] = frozenset(("empty bucket", "remove bucket", "kill bus"))
"""Kinds that lose what was stored before."""
FAILING: frozenset[Kind] = frozenset(("engine fails", "engine lies"))
"""Kinds that end turns with errors."""
CUTTING: frozenset[Kind] = frozenset(("freeze bus", "cut bus", "kill bus"))
"""Kinds that cut off the processes that are connected to a server."""
DEAD_AFTER_S = 3.0
"""Processes that are suspended or cut off for less are not taken for dead."""
DURATIONS_S = (0.0, 0.5, 2.0, 4.0, 4.0, 6.0, 6.0, 10.0, 10.0, 20.0, 20.0, 40.0, 90.0)
"""Most are long enough that a process counts as dead, and short enough that its turns wait for
it."""
ALL_LOST_S = 45.0, 75.0, 90.0
"""How long all messages of a kind are lost where all are: longer than most waits."""
GRACE_S = 8.0
"""How long a fault has effects after it ended: others notice, successors are chosen."""
RESTART_S = 0.5
"""Time after which a process that ended is started again."""
LOOK_S = 0.1
"""Time between two looks at how many turns are left."""


@dataclass(frozen=True)
class Fault:
    """One fault of a plan."""

    at: float
    """Seconds after the beginning of the load, after only `left` turns were left, or after `branch`
    was reached."""
    kind: Kind
    stage: str = ""
    index: int = 0
    """Which process of the stage: the first ones first."""
    seconds: float = 0.0
    """How long it lasts: until it heals, or until the process is started again."""
    amount: float = 0.0
    left: int = 0
    """How many turns are left without an answer when it begins; 0: it begins at its time."""
    subject: str = ""
    """The kind of messages that it loses; "": all."""
    branch: str = ""
    """The rare branch that must be reached before it begins. It hits the process that reached it,
    while that runs."""

    def __str__(self) -> str:
        target = (
            f" {self.stage}[{self.index}]"
            if self.stage
            else f" {self.subject}"
            if self.subject
            else ""
        )
        since = (
            f" after {self.left} are left"
            if self.left
            else f" after “{self.branch}”"
            if self.branch
            else ""
        )
        return f"{self.at:7.3f} s{since}: {self.kind}{target}, {self.seconds:.3f} s" + (
            f", {self.amount:g}" if self.amount else ""
        )


@dataclass
class Applied:
    """A fault that took place."""

    fault: Fault
    name: str
    """The process it hit; "" for the bus."""
    stage: str
    began: float
    ended: float = math.inf

    @property
    def deadly(self) -> bool:
        """Whether others may take the process for dead."""
        fault = self.fault
        return fault.kind in DEADLY and (fault.kind not in ("freeze", "cut") or self.lasts)

    @property
    def lasts(self) -> bool:
        """Whether it is long enough that others take a process for dead that is cut off
        meanwhile."""
        return self.fault.seconds >= DEAD_AFTER_S

    @property
    def until(self) -> float:
        """The time until which it has effects."""
        return self.ended + GRACE_S


def draw(random: Random, *, span_s: float, turns: int, branches: Sequence[str] = ()) -> list[Fault]:
    """Draws the faults of a load with this number of turns. Those at times are within `span_s`;
    they may overlap, or each has ended before the next. Some are followed by a second one of a
    process that has the same turns. `branches`: the rare ones that some faults wait for."""
    late, together = random.random() < 0.5, random.random() < 0.5
    faults: list[Fault] = []
    at, left = 0.0, 0
    for _ in range(random.randint(3, 6) if late or together else random.randint(1, 3)):
        if late:
            at, left = random.random() * 2.0, max(1, round(turns * random.random() ** 2))
        elif together:
            at = random.random() * span_s
        fault = _draw_one(random, at, left)
        if branches and random.random() < 0.2:
            soon = round(random.random() * random.choice((0.01, 0.1, 4.0)), 4)
            faults.append(replace(fault, at=soon, left=0, branch=random.choice(branches)))
            continue
        faults.append(fault)
        at += fault.seconds + random.random() * span_s / 3
        if fault.kind in DEADLY and fault.stage in PARTNERS and random.random() < 0.4:
            stage, branch = PARTNERS[fault.stage]
            second = replace(
                fault, kind=random.choice(("kill", "kill", "lose machine", "freeze")), stage=stage
            )
            if branches and random.random() < 0.6:
                within_s = 0.01  # within milliseconds all of it is sent, unless the network is slow
                if random.random() < 0.5:
                    slow = replace(
                        second,
                        at=0.0,
                        kind="slow network",
                        seconds=20.0,
                        amount=0.6,
                        left=0,
                        branch=branch,
                    )
                    faults.append(slow)
                    within_s = 3.0
                faults.append(
                    replace(second, at=round(random.random() * within_s, 4), left=0, branch=branch)
                )
            else:
                faults.append(
                    replace(second, at=round(fault.at + random.random() * 2 * DEAD_AFTER_S, 3))
                )
    return sorted(faults, key=lambda fault: (-fault.left, fault.at))


def draw_lies(random: Random, *, span_s: float, turns: int) -> list[Fault]:
    """Draws when the servers lie of a deployment in which workers decode on servers."""
    faults = []
    for _ in range(random.choice((0, 1, 1, 2))):
        late = random.random() < 0.5
        fault = Fault(
            at=round(random.random() * (2.0 if late else span_s), 3),
            kind="engine lies",
            stage="worker",
            index=random.randrange(3),
            seconds=random.choice(DURATIONS_S[1:]),
            amount=random.choice(LIE_CHANCES),
            left=max(1, round(turns * random.random())) if late else 0,
        )
        faults.append(fault)
    return faults


def _draw_one(random: Random, at: float, left: int) -> Fault:
    kinds = random.choice((*(PROCESS_KINDS,) * 4, ENGINE_KINDS, BUS_KINDS, BUS_KINDS, STORE_KINDS))
    kind = random.choice(kinds)
    stage = (
        random.choice(TARGETS)
        if kinds is PROCESS_KINDS
        else "worker"
        if kinds is ENGINE_KINDS
        else ""
    )
    seconds = random.choice(DURATIONS_S) * (0.5 + random.random())
    subject = random.choice(SUBJECTS) if kind == "lose messages" and random.random() < 0.5 else ""
    amount = {
        "slow network": random.choice((0.01, 0.1, 0.6)),
        "slow loop": random.choice((0.002, 0.02, 0.2)),
        "clock": random.choice((-3600.0, 3600.0, -2.0, 5.0, 86400.0)),
        "lose messages": random.choice(
            (0.2, 0.6, 1.0, 1.0) if subject not in ("", "beat") else (0.02, 0.1, 0.4)
        ),
        "no leader": random.choice((0.0, 1.0)),
    }.get(kind, 0.0)
    if subject and amount == 1.0 and random.random() < 0.5:
        seconds = random.choice(ALL_LOST_S)
    return Fault(
        at=round(at, 3),
        kind=kind,
        stage=stage,
        index=random.randrange(3),
        seconds=round(min(seconds, 90.0), 3),
        amount=amount,
        left=left,
        subject=subject,
    )


class Injector:
    """Applies the faults of a plan to a world."""

    def __init__(
        self, world: World, faults: Sequence[Fault], random: Random, left: Callable[[], int]
    ) -> None:
        """`left`: returns how many turns have no answer yet."""
        self.applied: list[Applied] = []
        self._world = world
        self._random = random
        self._left = sum(not fault.branch for fault in faults)
        self._turns_left = left
        self._branches = [fault for fault in faults if fault.branch]
        reach.listen(self._reached)
        self._under_way: Counter[tuple[Kind, str]] = Counter()
        """How many faults of a kind change the same thing now."""
        self._heals: dict[tuple[Kind, str], Callable[[], object]] = {}
        for fault in faults:
            if not fault.left and not fault.branch:
                self._later(fault.at, self._apply, fault)
        self._wait([fault for fault in faults if fault.left])

    @property
    def over(self) -> bool:
        """Whether every fault has ended, and every process is there again."""
        return (
            not self._left
            and all(applied.ended < math.inf for applied in self.applied)
            and self._world.ready
        )

    def _wait(self, faults: Sequence[Fault]) -> None:
        """Lets faults begin as soon as only their number of turns is left."""
        left = self._turns_left()
        for fault in faults:
            if left <= fault.left:
                self._later(fault.at, self._apply, fault)
        if waiting := [fault for fault in faults if left > fault.left]:
            self._later(LOOK_S, self._wait, waiting)

    def _reached(self, branch: str) -> None:
        """Lets the faults begin that wait for a rare branch."""
        machine = running_machine()
        for fault in [
            fault for fault in self._branches if fault.branch == branch and self._turns_left()
        ]:
            self._branches.remove(fault)
            self._left += 1
            self._later(fault.at, self._apply, fault, machine.name if machine is not None else "")

    def _later(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        self._world.loop.call_later(seconds, call, *args, context=self._world.loop.system.context)

    def _apply(self, fault: Fault, name: str = "") -> None:
        """`name`: the process that reached the fault's branch."""
        self._left -= 1
        world = self._world
        if fault.stage:
            running = self._target(fault, name)
            if running is None:
                return
            applied = Applied(fault, running.machine.name, running.stage, world.loop.now)
            self.applied.append(applied)
            world.note("fault", f"{fault.kind} {applied.name} for {fault.seconds:g} s")
            self._apply_to_process(applied, running)
        else:
            applied = Applied(fault, "", "", world.loop.now)
            self.applied.append(applied)
            world.note("fault", f"{fault.kind} for {fault.seconds:g} s")
            self._apply_to_bus(applied)

    def _target(self, fault: Fault, name: str) -> Running | None:
        running = [
            process for process in self._world.running.values() if process.stage == fault.stage
        ]
        reached = self._world.running.get(name)
        if (
            reached is not None
            and reached.stage in STAGES
            and (reached.engine is not None or fault.kind not in ENGINE_KINDS)
        ):
            return reached
        return running[fault.index % len(running)] if running else None

    def _heal(self, applied: Applied, heal: Callable[[], object]) -> None:
        """Ends a fault after its time."""

        def healed() -> None:
            heal()
            applied.ended = self._world.loop.now
            self._world.note("fault", f"{applied.fault.kind} {applied.name} is over")

        self._later(applied.fault.seconds, healed)

    def _heal_last(self, applied: Applied, target: str, heal: Callable[[], object]) -> None:
        """Heals what several faults change at one target when the last of them is over."""
        key = applied.fault.kind, target
        self._under_way[key] += 1
        self._heals.setdefault(key, heal)

        def healed() -> None:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                self._heals.pop(key)()

        self._heal(applied, healed)

    def _start_again(self, applied: Applied, port: int) -> None:
        """Starts a successor after the fault's time; the fault is over when it is ready."""
        self._later(max(applied.fault.seconds, RESTART_S), self._start, applied, port)

    def _start(self, applied: Applied, port: int = 0) -> None:
        # A frontend that two faults ended has one successor, because a second one cannot listen on
        # its port.
        others = (
            running for running in self._world.running.values() if port and running.port == port
        )
        self._when_ready(applied, next(others, None) or self._world.start(applied.stage, port=port))

    def _when_ready(self, applied: Applied, running: Running) -> None:
        if running.failure is not None:  # it found no bus
            self._later(RESTART_S, self._start, applied, running.port)
        elif self._world.is_ready(running) or running.machine.name not in self._world.running:
            applied.ended = self._world.loop.now
        else:
            self._later(0.1, self._when_ready, applied, running)

    def _apply_to_process(self, applied: Applied, running: Running) -> None:
        world, fault, name = self._world, applied.fault, applied.name
        machine = running.machine
        match fault.kind:
            case "kill" | "lose machine":
                world.kill(name, silently=fault.kind == "lose machine")
                self._start_again(applied, running.port)
            case "freeze":
                world.freeze(name, fault.seconds)
                self._heal(applied, lambda: None)
            case "terminate":
                world.terminate(name)
                self._restart_when_gone(applied, running)
            case "start":
                self._start(applied)
            case "start other protocol":
                other = world.start_other(fault.stage).machine.name

                def leave() -> None:
                    if other in world.running:
                        world.terminate(other)

                self._heal(applied, leave)
            case "cut":
                world.network.cut.add(frozenset((name,)))
                self._heal_last(applied, name, lambda: world.network.heal(name))
            case "slow network":
                world.network.slow[name] = fault.amount
                self._heal_last(applied, name, lambda: world.network.slow.pop(name, None))
            case "slow loop":
                random = self._random
                machine.stall = lambda: (
                    random.random() * fault.amount if random.random() < 0.1 else 0.0
                )

                def fast() -> None:
                    machine.stall = None

                self._heal_last(applied, name, fast)
            case "clock":
                machine.skew_s += fault.amount
                self._heal(applied, lambda: None)
            case _:
                self._apply_to_engine(applied, running)

    def _restart_when_gone(self, applied: Applied, running: Running) -> None:
        if running.machine.alive:
            self._later(0.2, self._restart_when_gone, applied, running)
        else:
            self._start_again(applied, running.port)

    def _apply_to_engine(self, applied: Applied, running: Running) -> None:
        engine, fault = running.engine, applied.fault
        if engine is None:
            applied.ended = self._world.loop.now
            return
        if fault.kind == "engine hangs":
            engine.hang(fault.seconds)
        elif fault.kind == "engine lies":
            assert running.server_engine is not None
            running.server_engine.lie(fault.seconds, fault.amount)
        else:
            call = engine.die if fault.kind == "engine dies" else engine.fail_turns
            self._world.loop.call_soon(call, context=running.machine.context)
        if fault.kind == "engine dies":
            self._restart_when_gone(applied, running)
        else:
            self._heal(applied, lambda: None)

    def _server(self, fault: Fault) -> str | None:
        """One of the NATS servers that run."""
        names = [*self._world.servers]
        return names[fault.index % len(names)] if names else None

    def _apply_to_bus(self, applied: Applied) -> None:
        world, fault, cluster = self._world, applied.fault, self._world.cluster
        match fault.kind:
            case "freeze bus":
                if (server := self._server(fault)) is not None:
                    world.freeze(server, fault.seconds)
                self._heal(applied, lambda: None)
            case "cut bus":
                if (server := self._server(fault)) is not None:
                    world.network.cut.add(frozenset((server,)))
                    self._heal_last(applied, server, partial(world.network.heal, server))
                else:
                    applied.ended = world.loop.now
            case "kill bus":
                names = [server] if (server := self._server(fault)) is not None else []
                for name in names:
                    world.kill(name)
                if self._random.random() < 0.5:
                    cluster.lose_writes(self._random.random() * 5.0)
                self._heal(applied, lambda: [world.start_server(name) for name in names])
            case "lose messages":
                beginning = {"": "tw.", REPLIES: "_INBOX"}.get(
                    fault.subject, f"{subjects.PREFIX}.{fault.subject}."
                )
                loss = beginning, fault.amount
                cluster.losses.append(loss)
                self._heal(applied, partial(cluster.losses.remove, loss))
            case "empty bucket":
                for name in cluster.groups:
                    cluster.empty(name)
                self._heal(applied, lambda: None)
            case "remove bucket":
                cluster.groups.clear()
                self._heal(applied, lambda: None)
            case "no leader" if fault.amount:
                cluster.hangs = True

                def answer() -> None:
                    cluster.hangs = False

                self._heal_last(applied, "answers", answer)
            case "no leader":
                leaders = [
                    (group, group.leader) for group in (cluster.everyone, *cluster.groups.values())
                ]
                for group, _ in leaders:
                    group.leader = None

                def elect() -> None:
                    for group, leader in leaders:
                        group.leader = group.leader or leader

                self._heal_last(applied, "leaders", elect)
            case _:
                cluster.disk_full = True

                def room() -> None:
                    cluster.disk_full = False
                    for name in [
                        *world.servers
                    ]:  # nats-server takes nothing more until it is started again
                        world.kill(name)
                        world.start_server(name)

                self._heal_last(applied, "", room)
