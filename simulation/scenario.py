"""Plays one simulation from its seed: a deployment, sessions, faults, and the judgement of everything.

The judges:

- each answer is the one that the model wrote, and its events are those of a run without faults;
- a request ends otherwise only where the promises allow it (docs/reliability.md);
- nothing comes twice, and each call is dispatched at most once;
- a prompt is the one of the run without faults, and no session or tenant sees another's words;
- when the faults are over, every session ends, and every process returns to its idle state.
"""

import gc
import math
import re
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from services.runtime.config.settings import MIB
from simulation.canonical import by_choice, canonical, log_probabilities, without_prompt_tokens
from simulation.clients import SILENCE, Agent, Request
from simulation.faults import CUTTING, ENDING, LOSING, Applied, Fault, Injector, draw
from simulation.loop import Machine
from simulation.result import Result
from simulation.sessions import Answer, Ask, Behaviour, Session, Workload
from simulation.world import INNER_STAGES, STAGES, Running, World, tokenizer

WORKLOADS = 12
"""Different workloads: seeds share them, so that a run without faults is made once for many."""


@dataclass(frozen=True)
class Scale:
    """How much a seed plays."""

    sessions: int
    start_s: float
    """Sessions begin within this time."""
    span_s: float
    """Faults begin within this time."""


MANY, FEW = Scale(24, 20.0, 40.0), Scale(5, 4.0, 12.0)
"""One workload in three has few sessions: many cover up what is lost, because later messages show it."""
TURNS_LIMIT_S = 3600.0
SETTLE_S = 40.0
LAG_S = 3.0
"""Time after which all servers of a cluster have what its leader stored."""
SAMPLE_S = 0.25
WAIT_S = 30.0
"""How long a request that has not begun waits for a stage."""
MUCH_LOST = 0.4
"""The part of messages that is lost where a request may wait for all that time."""
GRACE_S = 8.0
"""How long a fault has effects after it ended: others notice, successors are chosen."""
DRAIN_S = 30.0
"""How long a process that is terminated goes on with its turns."""
STALE_S = 40.0
"""Time after which a NATS server may disconnect a client that does not answer: by its pings after 40 to 60 s, or
earlier where it cannot write. A frontend's turns end then."""
LATE_S = 25.0
"""How much longer than without faults an answer may take, without the time of faults: readers are slow by chance."""


_ASK = re.compile(r"s\d+a\d+ asks\.")
_MISSING = re.compile(r"no (\w+) serves this model at the moment")
_LATER = Counter({"Subscription._wait_for_msgs": 2, "inbox": 1})
"""What a process makes with its first request and its first call of JetStream, and for the caches of several
workers."""
_WARM_UP = Session(
    "warm-up",
    "messages",
    "red",
    "",
    [Ask("[[say]]Yes.\n</think>\n\nReady.[[/say]]", [Answer("", [("reasoning", "Yes."), ("text", "Ready.")], [])])],
    Behaviour(pause_s=0.0),
)


@dataclass
class Reference:
    """The run of a workload without faults."""

    answers: dict[str, list[Any]]
    """Session → its answers' events."""
    probabilities: dict[str, list[Any]]
    """Session → the log probabilities in its answers."""
    prompts: dict[str, list[int]]
    """The turn that a prompt is for → its ids."""
    seconds: dict[str, list[float]]
    """Session → how long its answers took."""


class Monitor:
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
            one.machine.frozen or frozenset((name,)) in cut for name, one in world.servers.items()
        ):  # or there is none
            down.add("bus")
        self.samples.append((world.loop.now, frozenset(down)))
        world.loop.call_later(SAMPLE_S, self._sample, context=world.loop.system.context)

    def down(self, began: float, ended: float) -> frozenset[str]:
        """What was down at some time between two times."""
        return frozenset().union(*(down for at, down in self.samples if began <= at <= ended))

    def longest(self, stage: str, began: float, ended: float) -> float:
        """The longest time without a process of a stage, in seconds."""
        longest = current = 0.0
        for at, down in self.samples:
            if began <= at <= ended:
                current = current + SAMPLE_S if stage in down else 0.0
                longest = max(longest, current)
        return longest


class Scenario:
    """One seed."""

    def __init__(self, seed: int, model: Path, reference: Reference | None = None) -> None:
        """`reference`: the run of the seed's workload without faults; None: answers are compared with the
        script only."""
        self.seed = seed
        self._reference = reference
        self.model = model
        random = Random(f"scenario {seed}")
        workload = seed % WORKLOADS
        self.scale = FEW if workload % 3 == 0 else MANY
        self.workload = Workload(workload, self.scale.sessions)
        self.counts = {stage: random.choice((1, 1, 2, 2, 3)) for stage in STAGES}
        self.recovery_s = random.choice((20.0, 20.0, 90.0))
        self.servers = random.choice((1, 1, 1, 3))
        self.window_bytes = random.choice((MIB, MIB, 16_384, 4096))
        more = Random(f"holding {seed}")
        self.settings = {
            "preprocessor": {"hold_tokens": more.choice((0, 32, 32, 128, 512))},
            "worker": {"prefill_tokens_per_s": more.choice((0, 2000, 5000))},
        }
        self.faults = draw(random, span_s=self.scale.span_s, turns=self.workload.turns)

    def play(self, faults: Sequence[Fault] | None = None, *, keep_trace: bool = False) -> Result:
        """Plays the seed with its faults, or with others."""
        faults = self.faults if faults is None else faults
        result = Result(self.seed, faults=[*map(str, faults)], turns=self.workload.turns)
        world = World(
            self.seed,
            self.model,
            servers=self.servers,
            recovery_s=self.recovery_s,
            window_bytes=self.window_bytes,
            settings=self.settings,
            keep_trace=keep_trace,
        )
        try:
            self._play(world, faults, result)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            result.failures.append(f"the simulation failed: {error!r} at {place.filename}:{place.lineno}")
        finally:
            result.digest, result.trace = world.digest, [*world.trace]
            world.close()
        return result

    def reference(self) -> Reference:
        """Plays the workload without faults."""
        world = World(self.seed % WORKLOADS, self.model)
        try:
            world.begin(dict.fromkeys(STAGES, 1))
            world.run(lambda: world.ready, 60.0)
            agents = self._agents(world, Random(0))
            if not world.run(lambda: all(agent.done for agent in agents), TURNS_LIMIT_S):
                raise RuntimeError(f"workload {self.seed % WORKLOADS} does not end without faults")
            wrong = [problem for agent in agents for problem in agent.problems]
            if wrong:
                raise RuntimeError(f"workload {self.seed % WORKLOADS} fails without faults: {wrong}")
            answers = {agent.session.name: [canonical(request.events) for request in agent.answers] for agent in agents}
            seconds = {agent.session.name: [one.ended - one.began for one in agent.answers] for agent in agents}
            probabilities = {agent.session.name: [*map(_probabilities, agent.answers)] for agent in agents}
            return Reference(answers, probabilities, {turn: ids for _, turn, ids in _named(world)}, seconds)
        finally:
            world.close()

    @staticmethod
    def _differences(
        agents: Sequence[Agent], world: World, reference: Reference, applied: Sequence[Applied]
    ) -> list[str]:
        """How answers and prompts differ from those of the run without faults."""
        found: list[str] = []
        # The loss of a turn's entry in the ledger costs its exact tokens, never its text (docs/ledger.md).
        exact_until = min((one.began for one in applied), default=math.inf)
        for agent in agents:
            for number, request in enumerate(agent.answers):
                got, expected = canonical(request.events), reference.answers[agent.session.name][number]
                if request.ended >= exact_until:
                    got, expected = without_prompt_tokens(got), without_prompt_tokens(expected)
                if got != expected:
                    differing = next((pair for pair in zip(got, expected, strict=False) if pair[0] != pair[1]), "")
                    found.append(f"{agent.session.name} turn {number}: other events than without faults: {differing}")
                probabilities = reference.probabilities[agent.session.name][number]
                if not _agree(_probabilities(request), probabilities, applied):
                    found.append(f"{agent.session.name} turn {number}: other log probabilities than without faults")
                taken, normal = request.ended - request.began, reference.seconds[agent.session.name][number]
                if taken - _faulty_s(request, applied) > normal + LATE_S:
                    found.append(
                        f"{agent.session.name} turn {number} took {taken:.1f} s, {normal:.1f} s without faults"
                    )
        for at, turn, ids in _named(world):
            if ids == reference.prompts.get(turn):
                continue
            text, wanted = (_decode(one, world.model) for one in (ids, reference.prompts.get(turn, [])))
            if at < exact_until or text != wanted:
                found.append(f"the prompt of {turn} differs: {text[-200:]!r}, without faults {wanted[-200:]!r}")
        return found

    # -- playing ------------------------------------------------------------------------------------------------------

    def _agents(self, world: World, random: Random) -> list[Agent]:
        agents = []
        groups: dict[int, float] = {}
        for session in self.workload.sessions:
            agent = Agent(world, session, Random(f"{self.seed} {session.name}"))
            machine = Machine(session.name)
            start = random.random() * self.scale.start_s
            if session.group:  # siblings begin in one moment
                start = groups.setdefault(session.group, start) + start / 1000
            world.loop.call_later(start, self._begin, world, agent, machine, context=world.loop.system.context)
            agents.append(agent)
        return agents

    @staticmethod
    def _begin(world: World, agent: Agent, machine: Machine) -> None:
        agent.task = world.loop.create_task(agent.run(), context=machine.context)

    def _play(self, world: World, faults: Sequence[Fault], result: Result) -> None:
        random = Random(f"play {self.seed}")
        world.begin(self.counts)
        if not world.run(lambda: world.ready, 60.0):
            result.failures.append("the deployment does not become ready")
            return
        warm = [Agent(world, _WARM_UP, Random(0), name) for name, one in world.running.items() if one.port]
        for agent in warm:  # what a process makes with its first turn belongs to its idle state
            self._begin(world, agent, Machine(_WARM_UP.name))
        world.run(lambda: all(agent.done for agent in warm), 60.0)
        world.run(lambda: False, 2.0)
        idle: dict[str, Counter[str]] = {}
        for running in world.running.values():
            idle[running.stage] = idle.get(running.stage, Counter()) | _idle_state(running)
        monitor = Monitor(world)
        agents = self._agents(world, random)
        injector = Injector(world, faults, random, lambda: sum(agent.left for agent in agents))
        ended = world.run(lambda: all(agent.done for agent in agents), TURNS_LIMIT_S)
        requests = [request for agent in agents for request in agent.requests]
        result.requests = len(requests)
        for request in requests:
            result.outcomes[request.outcome] = result.outcomes.get(request.outcome, 0) + 1
        for agent in agents:
            result.failures += agent.problems
            if agent.task is not None and agent.task.done() and (error := agent.task.exception()) is not None:
                result.failures.append(f"{agent.session.name}: {type(error).__name__}: {error}")
        if self._reference is not None:
            result.failures += self._differences(agents, world, self._reference, injector.applied)
        if not ended:
            waiting = [agent.session.name for agent in agents if not agent.done]
            result.failures.append(f"the sessions {waiting} do not end")
            return
        result.failures += [
            f"{request.session} turn {request.turn} at {request.frontend}, {request.began:.3f} to {request.ended:.3f}: "
            f"{request.outcome}: {request.problem}: {why}"
            for request in requests
            if (why := _forbidden(request, injector.applied, monitor, self.recovery_s))
        ]
        if not world.run(lambda: injector.over, 400.0):
            result.failures.append("the deployment does not become ready after the faults")
            return
        settled = world.run(lambda: not _unsettled(world, idle), SETTLE_S + self.recovery_s)
        if not settled:
            result.failures += _unsettled(world, idle)
        world.run(lambda: False, LAG_S)
        reads = [world.loop.create_task(agent.read_back(), context=Machine("reads").context) for agent in agents]
        world.run(lambda: all(read.done() for read in reads), WAIT_S)
        result.failures += [text for agent in agents for text in _unstored(agent, injector.applied)]
        gc.collect()  # reports the exceptions of tasks that nobody waited for
        dead = [one.name for one in injector.applied if one.fault.kind == "engine dies"]
        expected = tuple(f"{name}: error: process.failed" for name in dead)
        result.failures += [error for error in world.errors if not error.startswith(expected)]


def _named(world: World) -> Iterator[tuple[float, str, list[int]]]:
    """When each turn began, the turn, by the last question in its prompt and the answers after that, and the ids."""
    for at, ids in world.prompts:
        text = _decode(ids, world.model)
        asks = [*_ASK.finditer(text)]
        if asks:
            yield at, f"{asks[-1][0]} {text.count('<|im_start|>assistant', asks[-1].end())}", ids


def _decode(ids: Sequence[int], model: str) -> str:
    text: str = tokenizer(model).decode(ids, skip_special_tokens=False)
    return text


def _forbidden(request: Request, applied: Sequence[Applied], monitor: Monitor, recovery_s: float) -> str:
    """Why the promises do not allow this end of a request; "" if they do."""
    began, ended = request.began, request.ended
    near = [one for one in applied if one.began <= ended and one.ended + GRACE_S >= began]
    own = [one for one in near if one.name == request.frontend]
    for since, until in request.silences:
        if not any(one.began <= until and one.ended + GRACE_S >= since for one in own):
            return f"no keep-alive for {until - since:.1f} s"
    match request.outcome:
        case "broken":
            ending = ("lose machine",) if request.problem == SILENCE else ENDING
            if not request.frontend or any(one.fault.kind in ending for one in own):
                return ""
            return "" if "connect call failed" in request.problem and _starting(near) else "no fault of its frontend"
        case "refused":
            if request.too_long and request.status == 400:
                return ""
            if request.status == 500:  # before the first event, an error of the turn is a status
                return _forbidden_error(request, near, monitor, recovery_s)
            if _refused_too_soon(request, applied, monitor, recovery_s, _lossy_s(request, near)):
                return "refused too soon"
            away = any(one.deadly for one in own) or monitor.down(began - 1.0, ended) or _bus(near)
            if request.status in (503, 529) and away:
                return ""
            # A Response that is stored during an outage may be missing afterwards, or not have its end.
            lost = request.status == 400 and ("Previous response" in request.problem or "not ended" in request.problem)
            if lost and any(one.began <= ended for one in applied):
                return ""
            return "nothing was down"
        case "error":
            if _MISSING.search(request.problem) and _starting(applied):  # not seen by a new frontend; in the background
                return ""
            return _forbidden_error(request, near, monitor, recovery_s)
    return ""


def _forbidden_error(request: Request, near: Sequence[Applied], monitor: Monitor, recovery_s: float) -> str:
    deadly = [one for one in near if one.deadly and one.stage != "frontend"]
    if any(one.fault.kind == "engine fails" for one in near) or len(deadly) >= 3:
        return ""
    # A server of a cluster that fails cuts off those of any stage that are connected to it.
    several = [one for one in near if monitor.clustered and one.fault.kind in CUTTING and one.lasts]
    workers = [one for one in deadly if one.stage == "worker"] + several
    parsers = [one for one in deadly if one.stage == "parser"] + several
    for one, other in product(workers, parsers):
        if one is not other and one.began <= other.ended + GRACE_S and other.began <= one.ended + GRACE_S:
            return ""
    waits_s = recovery_s if request.answer.blocks else min(WAIT_S, recovery_s)
    since = request.began - (0.0 if request.answer.blocks else recovery_s) - GRACE_S
    longest = max(monitor.longest(stage, since, request.ended) for stage in (*INNER_STAGES, "bus"))
    own = [one for one in near if one.name == request.frontend]
    if any(one.fault.kind == "terminate" and request.ended >= one.began + DRAIN_S - 1.0 for one in own):
        return ""
    away_s = max((one.ended - one.began for one in own if one.deadly), default=0.0)
    if longest + _lossy_s(request, near) >= waits_s - GRACE_S or away_s >= min(waits_s, STALE_S) - GRACE_S:
        return ""
    return "no pair of faults, no three deaths, no stage that was away for long"


def _probabilities(request: Request) -> list[Any]:
    return [log_probabilities(choice) for choice in by_choice(request.events)]


def _agree(got: Sequence[Any], expected: Sequence[Any], applied: Sequence[Applied]) -> bool:
    """Whether log probabilities are those of the run without faults. Those of tokens that a lost worker decoded may be
    missing."""
    if not any(one.stage in ("worker", "") for one in applied):
        return got == expected
    left = [iter(choice) for choice in expected]
    return all(one in rest for choice, rest in zip(got, left, strict=True) for one in choice)


def _unstored(agent: Agent, applied: Sequence[Applied]) -> Iterator[str]:
    """How stored answers differ from those that the client had. One that is stored during a fault of the bus, of the
    store or of its frontend may be missing, or not have its end; some faults lose older ones, too."""
    for answer, read in agent.reads:
        is_lost = read.status == 404 or read.outcome == "pending" or "that ran this response is gone" in read.problem
        excuses = [
            one
            for one in applied
            if one.name in ("", answer.frontend)
            and one.ended + GRACE_S >= answer.began
            and (one.began <= answer.ended + GRACE_S or one.fault.kind in LOSING)
        ]
        if read.problem and not (is_lost and excuses):
            yield f"{agent.session.name} turn {answer.turn} is not read back: {read.problem}"


def _faulty_s(request: Request, applied: Sequence[Applied]) -> float:
    """How long a request lasted while any fault had effects, in seconds."""
    total, until = 0.0, request.began
    for one in sorted(applied, key=lambda one: one.began):
        ended = min(one.ended + GRACE_S, request.ended)
        if ended > until:
            total, until = total + max(ended - max(one.began, until), 0.0), ended
    return total


def _lossy_s(request: Request, near: Sequence[Applied]) -> float:
    """How long a request lasted while much of what its stages send each other was lost, in seconds."""
    return max(
        (
            min(one.ended, request.ended) - max(one.began, request.began)
            for one in near
            if one.fault.kind == "lose messages" and one.fault.amount >= MUCH_LOST
        ),
        default=0.0,
    )


def _refused_too_soon(
    request: Request, applied: Sequence[Applied], monitor: Monitor, recovery_s: float, lossy_s: float
) -> bool:
    """Whether a frontend did not wait, or not long enough, for a stage that it had seen within `recovery_s`."""
    missing = _MISSING.search(request.problem)
    if missing is None or any(one.stage == "frontend" for one in applied):  # a new frontend has not seen the stage
        return False
    longest = monitor.longest(missing[1], request.began - recovery_s - GRACE_S, request.ended)
    waited = request.ended - request.began >= WAIT_S - 1.0
    return longest + (lossy_s if waited else 0.0) < (WAIT_S if waited else recovery_s) - GRACE_S


def _bus(near: Sequence[Applied]) -> bool:
    return any(not one.name for one in near)


def _starting(near: Sequence[Applied]) -> bool:
    """Whether a frontend was being started, so that nobody listened yet."""
    return any(one.stage == "frontend" for one in near)


def _idle_state(running: Running) -> Counter[str]:
    """What a process has: tasks and subscriptions, by name."""
    process = running.process
    found = process.bus._subscriptions if process is not None else []
    # Where there are several workers, preprocessors listen to what their caches hold.
    subjects = [one._subject for one in found if ".kv." not in one._subject]
    own = process.id if process is not None else ""
    subscriptions = Counter("inbox" if one.startswith("_INBOX") else one.replace(own, "ID") for one in subjects)
    return Counter(getattr(task.get_coro(), "__qualname__", "?") for task in running.machine.tasks) + subscriptions


def _unsettled(world: World, idle: dict[str, Counter[str]]) -> list[str]:
    """What is left in processes although nothing is to do."""
    left: list[str] = []
    for name, running in world.running.items():
        if running.process is None:
            continue
        process, service = running.process, running.service
        load = service.load()
        if load.running or load.waiting:
            left.append(f"{name} has {load.running} turns at work and {load.waiting} waiting")
        if process.bus.waiting:
            left.append(f"{name} waits for {len(process.bus.waiting)} answers")
        if unacknowledged := service.links().unacknowledged:
            left.append(f"{name} has unacknowledged frames: {unacknowledged}")
        if more := _idle_state(running) - idle.get(running.stage, _idle_state(running)) - _LATER:
            left.append(f"{name} has more tasks or subscriptions than when it was idle: {dict(more)}")
        left += [f"{name}: {text}" for text in _held(running.stage, service)]
        own = [one for one in world.network.open if one.machine is running.machine]
        if clients := sum(one.get_extra_info("sockname")[1] == running.port for one in own):
            left.append(f"{name} has {clients} connections of clients that are gone")
    return left


def _held(stage: str, service: Any) -> list[str]:
    """The turns that a stage still holds."""
    if stage == "parser":
        return [f"turn {turn}" for turn in service._shard.turns]
    if stage == "worker":
        return [f"turn {turn}" for turn in service._turns]
    if stage == "preprocessor":
        leads = [f"lead {lead.turn} with {len(lead.followers)} followers" for lead in service._holding._open]
        return [*(f"turn {turn}" for turn in service._turns), *leads]
    return []
