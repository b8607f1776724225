"""Plays one simulation from its seed: a deployment, sessions and faults, until the judges have seen
everything."""

import gc
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from services.runtime.config.base import MIB
from simulation.clients import Agent
from simulation.faults import Applied, Fault, Injector, draw, draw_lies
from simulation.judges.answers import Reference, differences, unstored
from simulation.judges.ends import WAIT_S, EndJudge, Outages
from simulation.judges.idle import IdleStates
from simulation.loop import Machine
from simulation.reach import marks
from simulation.result import Result
from simulation.sessions import Answer, Ask, Behaviour, Session, Workload
from simulation.world import STAGES, World

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
"""One workload in three has few sessions: many cover up what is lost, because later messages show
it."""
TURNS_LIMIT_S = 3600.0
SETTLE_S = 40.0
LAG_S = 3.0
"""Time after which all servers of a cluster have what its leader stored."""
_WARM_UP = Session(
    name="warm-up",
    api="messages",
    tenant="red",
    system="",
    asks=[
        Ask(
            "[[say]]Yes.\n</think>\n\nReady.[[/say]]",
            [Answer("", [("reasoning", "Yes."), ("text", "Ready.")], [])],
        )
    ],
    behaviour=Behaviour(pause_s=0.0),
)


class Scenario:
    """One seed."""

    def __init__(self, seed: int, model: Path, reference: Reference | None = None) -> None:
        """`reference`: the run of the seed's workload without faults; None: answers are compared
        with the script only."""
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
        self.faults = draw(
            random, span_s=self.scale.span_s, turns=self.workload.turns, branches=marks()
        )

        lies = Random(f"lies {seed}")
        self.over_servers = lies.random() < 0.4
        if self.over_servers:
            self.faults += draw_lies(lies, span_s=self.scale.span_s, turns=self.workload.turns)

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
            over_servers=self.over_servers,
            keep_trace=keep_trace,
        )
        try:
            self._play(world, faults, result)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            result.failures.append(
                f"the simulation failed: {error!r} at {place.filename}:{place.lineno}"
            )
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
                raise RuntimeError(
                    f"workload {self.seed % WORKLOADS} fails without faults: {wrong}"
                )
            return Reference.of(agents, world)
        finally:
            world.close()

    # -- playing

    def _agents(self, world: World, random: Random) -> list[Agent]:
        agents = []
        groups: dict[int, float] = {}
        for session in self.workload.sessions:
            agent = Agent(world, session, Random(f"{self.seed} {session.name}"))
            machine = Machine(session.name)
            start = random.random() * self.scale.start_s
            if session.group:  # siblings begin in one moment
                start = groups.setdefault(session.group, start) + start / 1000
            world.loop.call_later(
                start, self._begin, world, agent, machine, context=world.loop.system.context
            )
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
        warm = [
            Agent(world, _WARM_UP, Random(0), name)
            for name, running in world.running.items()
            if running.port
        ]
        for agent in warm:  # what a process makes with its first turn belongs to its idle state
            self._begin(world, agent, Machine(_WARM_UP.name))
        world.run(lambda: all(agent.done for agent in warm), 60.0)
        world.run(lambda: False, 2.0)
        idle, outages = IdleStates(world), Outages(world)
        agents = self._agents(world, random)
        injector = Injector(world, faults, random, lambda: sum(agent.left for agent in agents))
        ended = world.run(lambda: all(agent.done for agent in agents), TURNS_LIMIT_S)
        requests = [request for agent in agents for request in agent.requests]
        result.requests = len(requests)
        for request in requests:
            result.outcomes[request.outcome] = result.outcomes.get(request.outcome, 0) + 1
        for agent in agents:
            result.failures += agent.problems
            if (
                agent.task is not None
                and agent.task.done()
                and (error := agent.task.exception()) is not None
            ):
                result.failures.append(f"{agent.session.name}: {type(error).__name__}: {error}")
        if self._reference is not None:
            result.failures += differences(agents, world, self._reference, injector.applied)
        if not ended:
            waiting = [agent.session.name for agent in agents if not agent.done]
            result.failures.append(f"the sessions {waiting} do not end")
            return
        judge = EndJudge(injector.applied, outages, self.recovery_s)
        result.failures += [
            f"{request.session} turn {request.turn} at {request.frontend}, {request.began:.3f} to "
            f"{request.ended:.3f}: "
            f"{request.outcome}: {request.problem}: {why}"
            for request in requests
            if (why := judge.forbidden(request))
        ]
        if not world.run(lambda: injector.over, 400.0):
            result.failures.append("the deployment does not become ready after the faults")
            return
        if not world.run(lambda: not idle.exceeded(), SETTLE_S + self.recovery_s):
            result.failures += idle.exceeded()
        world.run(lambda: False, LAG_S)
        reads = [
            world.loop.create_task(agent.read_back(), context=Machine("reads").context)
            for agent in agents
        ]
        world.run(lambda: all(read.done() for read in reads), WAIT_S)
        result.failures += [text for agent in agents for text in unstored(agent, injector.applied)]
        result.failures += idle.stay()
        gc.collect()  # reports the exceptions of tasks that nobody waited for
        result.failures += [
            error for error in world.errors if not _is_expected(error, injector.applied)
        ]


def _is_expected(error: str, applied: Sequence[Applied]) -> bool:
    """Whether a fault explains what was logged: a disk that stays full is reported, and so is the
    end of a process with its engine."""
    if "error: kv.unwritable" in error:
        return any(one.fault.kind == "full disk" for one in applied)
    dead = [one.name for one in applied if one.fault.kind == "engine dies"]
    return error.startswith(tuple(f"{name}: error: process.failed" for name in dead))
