"""Load that rises and falls, autoscalers that follow it, rolling updates of every stage, and a
judgement of every stream."""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from tests.chaos.clients import Stream, run_stream
from tests.chaos.judge import Wanted, judge
from tests.chaos.scripts import write_script
from tests.scaling.autoscaler import SYNC_S, Autoscaler, Target, evaluate
from tests.scaling.fleet import Fleet
from turnwire_tools.clients.answer import APIS

CPU_WINDOW = 20
"""Syncs over which CPU is averaged."""
PHASE_S = 600.0
"""A phase that does not reach its end by then has failed."""


@dataclass(frozen=True)
class Plan:
    """One run."""

    targets: dict[str, Target]
    speed: float
    low: int
    """Streams at once, before and after."""
    peak: int
    step_s: float
    """Between two steps of the load."""
    seconds: tuple[float, float] = (4.0, 16.0)
    """How long a stream takes."""
    delay_ms: tuple[int, int] = (40, 80)
    seed: str = "1"


@dataclass
class Phase:
    """What happened in one part of the run."""

    name: str
    began: float
    took_s: float = 0.0
    open: int = 0
    """Most streams at once."""
    pods: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Fewest and most of each stage."""
    started: int = 0
    ended: int = 0
    """Processes."""
    verdicts: Counter[str] = field(default_factory=Counter)
    """The verdicts on the streams that ended in it."""
    pause_s: float = 0.0
    wait_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)


class Run:
    """Runs a plan on a fleet."""

    def __init__(self, plan: Plan, fleet: Fleet, tokenizer: Tokenizer) -> None:
        self._plan = plan
        self._fleet = fleet
        self._tokenizer = tokenizer
        self._autoscalers = {stage: Autoscaler(target) for stage, target in plan.targets.items()}
        self._rolling = ""
        """The stage that is being updated: its number stays."""
        self._wanted = 0
        self._open = 0
        self._cpu: dict[str, list[tuple[float, dict[str, float]]]] = {
            stage: [] for stage in plan.targets
        }
        self.phases: list[Phase] = []
        self.values: dict[str, float] = {}
        """The last value of each autoscaler's metric."""

    async def run(self, on_phase: Callable[[Phase], None] = lambda _: None) -> list[Phase]:
        """Runs all phases and passes each to `on_phase` at its end. Raises TimeoutError if one does
        not end."""
        plan, fleet = self._plan, self._fleet
        for stage, target in plan.targets.items():
            fleet.scale(stage, target.fewest)
        await self._until(lambda: fleet.settled() and bool(fleet.urls()))
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            clients = [
                asyncio.create_task(self._client(http, number)) for number in range(plan.peak)
            ]
            scaling = asyncio.create_task(self._autoscale())
            try:
                steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
                    ("low load", lambda: self._load(plan.low)),
                    ("rising load", lambda: self._load(plan.peak)),
                    *(
                        (f"update of {stage}", lambda stage=stage: self._roll(stage))
                        for stage in plan.targets
                    ),
                    ("falling load", lambda: self._load(plan.low)),
                    ("end", self._finish),
                ]
                for name, act in steps:
                    on_phase(await self._phase(name, act))
            finally:
                self._wanted = 0
                for task in (scaling, *clients):
                    task.cancel()
                await asyncio.gather(scaling, *clients, return_exceptions=True)
        return self.phases

    async def _phase(self, name: str, act: Callable[[], Awaitable[None]]) -> Phase:
        phase = Phase(name, time.monotonic())
        self.phases.append(phase)
        self._count()
        async with asyncio.timeout(PHASE_S):
            await act()
        phase.took_s = time.monotonic() - phase.began
        return phase

    async def _load(self, wanted: int) -> None:
        """Reaches the load in steps; returns when the autoscalers are content with it."""
        way = 1 if wanted > self._wanted else -1
        size = max(1, abs(wanted - self._wanted) // 6)
        while self._wanted != wanted:
            self._wanted += way * min(size, abs(wanted - self._wanted))
            await asyncio.sleep(self._plan.step_s)
        await self._until(lambda: self._open == wanted)
        self.values.clear()  # they were read before
        await self._until(self._content)

    def _content(self) -> bool:
        """Whether there are as many pods of each stage as its metric asks for, all of them
        ready."""
        if not self._fleet.settled() or set(self.values) != set(self._plan.targets):
            return False
        counts = self._fleet.counts()
        for stage, target in self._plan.targets.items():
            due = max(
                target.fewest, min(target.most, math.ceil(self.values[stage] / target.per_pod))
            )
            if (
                abs(self.values[stage] / (target.per_pod * counts[stage]) - 1) > 0.1
                and counts[stage] != due
            ):
                return False
        return True

    async def _roll(self, stage: str) -> None:
        self._rolling = stage
        await self._fleet.roll(stage)
        self._rolling = ""
        await self._until(self._fleet.settled)

    async def _finish(self) -> None:
        self._wanted = 0
        await self._until(lambda: self._open == 0)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PHASE_S):
            while not condition():
                await asyncio.sleep(0.1)

    async def _autoscale(self) -> None:
        """Each sync period: reads the metrics, decides, scales."""
        while True:
            await asyncio.sleep(SYNC_S / self._plan.speed)
            for stage, autoscaler in self._autoscalers.items():
                value = await self._value(stage, autoscaler.target)
                current = self._fleet.counts()[stage]
                if value is None or stage == self._rolling or not current:
                    continue
                self.values[stage] = value
                if (count := autoscaler.decide(time.monotonic(), current, value)) != current:
                    self._fleet.scale(stage, count)
                    self.phases[-1].decisions.append(
                        f"{stage} {current} → {count}: {value:.2f} of {autoscaler.target.per_pod:.2f}"
                    )
            self._count()

    async def _value(self, stage: str, target: Target) -> float | None:
        if target.query:
            return evaluate(target.query, await self._fleet.metrics(stage))
        history = self._cpu[stage]
        history.append((time.monotonic(), self._fleet.cpu_s(stage)))
        del history[:-CPU_WINDOW]
        (before, first), (now, last) = history[0], history[-1]
        used = sum(last[pod] - first[pod] for pod in last if pod in first)
        known = sum(pod in first for pod in last)
        # Pods without a history are left out, as the autoscaler does.
        return used / (now - before) * len(last) / known if known and now > before else None

    def _count(self) -> None:
        """Notes what there is now."""
        phase = self.phases[-1]
        phase.open = max(phase.open, self._open)
        for stage, count in self._fleet.counts().items():
            low, high = phase.pods.get(stage, (count, count))
            phase.pods[stage] = (min(low, count), max(high, count))

    async def _client(self, http: aiohttp.ClientSession, number: int) -> None:
        """Sends one stream after the other, while the load needs this client."""
        for turn in itertools.count():
            while number >= self._wanted:
                await asyncio.sleep(0.1)
            stream = self._stream(number, turn)
            self._open += 1
            try:
                await run_stream(http, self._fleet.urls, stream, lambda: math.inf)
            finally:
                self._open -= 1
            found = judge(stream.wanted, stream.attempts, ["serving"] * len(stream.attempts))
            phase = self.phases[-1]
            phase.verdicts[found.verdict] += 1
            phase.pause_s = max(phase.pause_s, found.pause_s)
            phase.wait_s = max(phase.wait_s, found.wait_s)
            if found.verdict != "whole":
                phase.notes.append(
                    f"{stream.tag} {stream.wanted.api}: {found.verdict}: {found.why}"[:300]
                )

    def _stream(self, number: int, turn: int) -> Stream:
        chance = Random(f"{self._plan.seed} {number} {turn}")
        tag = f"s{number}t{turn}w"
        script = write_script(
            chance, tag, chance.uniform(*self._plan.seconds), chance.randrange(*self._plan.delay_ms)
        )
        tokens = len(self._tokenizer.encode(script.written, add_special_tokens=False).ids) + 1
        return Stream(
            tag, Wanted(APIS[number % 3], number % 8 != 7, script, tokens), chance.randrange(64)
        )


def as_rows(phases: list[Phase]) -> list[dict[str, Any]]:
    """For the table: one row a phase, and the sum."""
    total = Phase("**all**", 0.0)
    for phase in phases:
        total.took_s += phase.took_s
        total.verdicts += phase.verdicts
        total.pause_s, total.wait_s = (
            max(total.pause_s, phase.pause_s),
            max(total.wait_s, phase.wait_s),
        )
        total.open = max(total.open, phase.open)
        for stage, (low, high) in phase.pods.items():
            before = total.pods.get(stage, (low, high))
            total.pods[stage] = (min(before[0], low), max(before[1], high))
    rows = []
    for phase in [*phases, total]:
        pods = {
            stage: f"{low}" if low == high else f"{low} – {high}"
            for stage, (low, high) in phase.pods.items()
        }
        bad = sum(
            count
            for verdict, count in phase.verdicts.items()
            if verdict not in ("whole", "refused")
        )
        rows.append(
            {
                "phase": phase.name,
                "s": f"{phase.took_s:.0f}",
                "streams": phase.open,
                **pods,
                "answered": sum(phase.verdicts.values()),
                "lost or wrong": bad,
                "503 first": phase.verdicts["refused"],
                "longest pause": f"{phase.pause_s:.1f} s",
            }
        )
    return rows
