"""Simulates groups of agents that start together, in virtual time.

Sessions of a group begin with the same tokens and arrive within a second. The preprocessor's own
router, index and `leads` place them on engines that compute prompts one after the other or side by
side. Turns may fail or be cancelled, and notices may be lost. No processes, no IO.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Literal, TypeAlias

from schemas.control import Heartbeat, Load
from services.preprocessor.routing.kv_index import KvIndex
from services.preprocessor.routing.leads import GoOn, HoldAction, LeadLimit, Leads, PendingPrompt
from services.preprocessor.routing.router import Router, TurnProfile

Kind: TypeAlias = Literal["queue", "together", "late"]
"""How an engine computes prompts. `queue`: one after the other, and what it holds is looked up when
a turn arrives, as the script engine does. `together`: side by side. `late`: as `queue`, but looked
up when a prompt's turn has come, as vLLM does (no turn is held for such an engine)."""
BLOCK = 32
HOP_S = 0.0005
"""Time of a message on the bus."""
DECODE_S = 3.0
BEAT_S = 1.0


@dataclass(frozen=True)
class Shape:
    """What is simulated."""

    sessions: int = 1000
    workers: int = 2
    slots: int = 64
    hold_tokens: int = 2048
    kind: Kind = "queue"
    speed: float = 20_000.0
    """Prompt tokens per second of an engine."""
    span_s: float = 600.0
    """Groups arrive within this time."""
    most: int = 12
    """Largest group."""
    trouble: float = 0.0
    """Chance that a turn fails before its first token, and that a notice is lost."""
    priorities: Sequence[float] = (0.0,)
    load_tokens: float = 16384.0


@dataclass(eq=False)
class Turn:
    """One session's first turn."""

    name: str
    arrived: float
    keys: list[int]
    priority: float
    fails: bool
    loses_notice: bool
    prompt: PendingPrompt | None = None
    first_at: float = -1.0
    """When it had its first token, or failed."""
    worker: str = ""
    missing: float = 0.0
    """Tokens that the engine still has to compute."""
    held_s: float = 0.0
    held_since: float = 0.0

    @property
    def tokens(self) -> int:
        """The prompt's length."""
        return len(self.keys) * BLOCK


@dataclass(eq=False)
class Engine:
    """One worker's engine."""

    name: str
    blocks: set[int] = field(default_factory=set)
    prefilling: list[Turn] = field(default_factory=list)
    running: int = 0
    since: float = 0.0
    version: int = 0

    def missing(self, turn: Turn) -> int:
        """The tokens of a prompt that are not in the cache; the last block is always computed."""
        held = next(
            (at for at, key in enumerate(turn.keys[:-1]) if key not in self.blocks),
            len(turn.keys) - 1,
        )
        return turn.tokens - held * BLOCK


@dataclass
class Result:
    """A simulation's figures."""

    turns: list[Turn]
    computed: int = 0
    """Prompt tokens."""

    @property
    def total_s(self) -> float:
        """Sum of the times to the first token."""
        return sum(turn.first_at - turn.arrived for turn in self.turns)

    @property
    def end_s(self) -> float:
        """When the last turn had its first token."""
        return max(turn.first_at for turn in self.turns)


class Deployment:
    """One preprocessor and its workers, in virtual time."""

    def __init__(self, shape: Shape, turns: list[Turn]) -> None:
        self._shape = shape
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._leads = Leads(shape.hold_tokens)
        self._router = Router(load_tokens=shape.load_tokens, waiting=self._leads.waiting)
        self._index = KvIndex()
        self._engines = {
            name: Engine(name) for name in (f"w{number}" for number in range(shape.workers))
        }
        self._turns: dict[PendingPrompt, Turn] = {}
        self._heartbeats: list[Heartbeat] = []
        self._result = Result(turns)
        self._beat_at = 0.0

    def run(self) -> Result:
        """Plays all turns."""
        for turn in self._result.turns:
            self._at(turn.arrived, lambda turn=turn: self._arrive(turn))  # type: ignore[misc]
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            if self.now >= self._beat_at:
                self._beat()
            event()
        return self._result

    @property
    def left(self) -> bool:
        """Whether a lead is left."""
        prompts = [turn.prompt for turn in self._result.turns if turn.prompt is not None]
        return any(prompt.lead is not None or prompt.followers for prompt in prompts)

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _beat(self) -> None:
        slots = self._shape.slots
        loads = {
            one.name: Load(one.running + len(one.prefilling), 0, slots, 10_000)
            for one in self._engines.values()
        }
        self._heartbeats = [Heartbeat("worker", name, load=load) for name, load in loads.items()]
        for heartbeat in self._heartbeats:
            self._router.reset(heartbeat)
        self._beat_at = self.now + BEAT_S

    # -- the preprocessor
    # ---------------------------------------------------------------------------------------------

    def _arrive(self, turn: Turn) -> None:
        if 0 < self._shape.hold_tokens <= turn.tokens:
            turn.prompt = PendingPrompt(
                turn=turn.name,
                tokens=turn.tokens,
                keys=turn.keys,
                block_tokens=BLOCK,
                priority=turn.priority,
            )
            self._turns[turn.prompt] = turn
        self._place(turn)

    def _place(self, turn: Turn) -> None:
        prompt = turn.prompt
        held = {
            worker: blocks * BLOCK for worker, blocks in self._index.overlaps(turn.keys).items()
        }
        for worker, tokens in (self._leads.computing(prompt) if prompt is not None else {}).items():
            held[worker] = max(tokens, held.get(worker, 0))
        profile = TurnProfile(turn.tokens, held)
        worker = self._router.rank_workers(self._heartbeats, avoid=(), late=(), profile=profile)[0]
        lead = self._leads.find(prompt, worker, self.now) if prompt is not None else None
        if prompt is None or lead is None:
            self._send(turn, worker)
            return
        turn.held_since = self.now
        self._act(self._leads.follow(prompt, lead, self.now))

        def stop_waiting() -> None:
            if prompt.waits_for is not None:
                self._leads.leave(prompt)
                self._go_on(prompt)

        self._at(prompt.hold_until(self.now), stop_waiting)

    def _go_on(self, prompt: PendingPrompt) -> None:
        turn = self._turns[prompt]
        turn.held_s += self.now - turn.held_since
        self._at(self.now, lambda: self._place(turn))

    def _act(self, actions: list[HoldAction]) -> None:
        for action in actions:
            match action:
                case GoOn(prompt):
                    self._go_on(prompt)
                case LeadLimit(lead, seconds):
                    turn = self._turns[lead.prompt]
                    self._at(self.now + seconds, partial(self._noticed, turn, computed=False))

    def _send(self, turn: Turn, worker: str) -> None:
        if turn.prompt is not None:
            self._leads.begin(turn.prompt, worker, self.now)
        self._router.assign(worker)
        turn.worker = worker
        self._at(self.now + HOP_S, lambda: self._accept(turn))

    def _taken(self, turn: Turn, held: int) -> None:
        self._index.add(turn.worker, turn.keys)
        if turn.prompt is not None and turn.prompt.lead is not None:
            self._act(self._leads.record_accepted(turn.prompt.lead, held, self.now))

    def _noticed(self, turn: Turn, *, computed: bool) -> None:
        if turn.prompt is not None and turn.prompt.lead is not None:
            self._act(self._leads.end(turn.prompt.lead, computed=computed, now=self.now))

    # -- the engines
    # ----------------------------------------------------------------------------------------------

    def _accept(self, turn: Turn) -> None:
        engine = self._engines[turn.worker]
        self._progress(engine)
        missing = engine.missing(turn)
        turn.missing = missing
        engine.prefilling.append(turn)
        if self._shape.kind != "late":
            self._result.computed += missing
        if turn.fails:
            self._at(self.now + 0.5 * missing / self._shape.speed, lambda: self._fail(engine, turn))
        self._schedule(engine)
        self._at(self.now + HOP_S, lambda: self._taken(turn, turn.tokens - missing))

    def _progress(self, engine: Engine) -> None:
        """Computes up to now."""
        done = (self.now - engine.since) * self._shape.speed
        engine.since = self.now
        active = engine.prefilling if self._shape.kind == "together" else engine.prefilling[:1]
        for turn in active:
            turn.missing -= done / len(active)

    def _schedule(self, engine: Engine) -> None:
        """Plans the end of the next prompt."""
        engine.version += 1
        if not engine.prefilling:
            return
        version = engine.version
        together = self._shape.kind == "together"
        following = (
            min(engine.prefilling, key=lambda turn: turn.missing)
            if together
            else engine.prefilling[0]
        )
        share = len(engine.prefilling) if together else 1
        at = self.now + max(following.missing, 0.0) * share / self._shape.speed
        self._at(
            at, lambda: self._compute(engine, following) if engine.version == version else None
        )

    def _compute(self, engine: Engine, turn: Turn) -> None:
        if self._shape.kind == "late":
            self._result.computed += engine.missing(turn)
        engine.blocks.update(turn.keys)
        engine.running += 1
        self._at(self.now + DECODE_S, lambda: self._finish(engine))
        self._end(engine, turn, computed=True)

    def _fail(self, engine: Engine, turn: Turn) -> None:
        if turn in engine.prefilling:
            self._end(engine, turn, computed=False)

    def _end(self, engine: Engine, turn: Turn, *, computed: bool) -> None:
        self._progress(engine)
        first = turn is engine.prefilling[0]
        engine.prefilling.remove(turn)
        if self._shape.kind == "late" and first and engine.prefilling:
            engine.prefilling[0].missing = engine.missing(engine.prefilling[0])
        turn.first_at = self.now
        self._schedule(engine)
        if not turn.loses_notice:
            self._at(self.now + HOP_S, lambda: self._noticed(turn, computed=computed))

    @staticmethod
    def _finish(engine: Engine) -> None:
        engine.running -= 1


def draw(shape: Shape, seed: int) -> list[Turn]:
    """Draws groups of random sizes, some with groups within them, and sessions alone."""
    chance, turns = Random(seed), list[Turn]()

    def keys(least: int, most: int) -> list[int]:
        return [chance.getrandbits(64) for _ in range(chance.randint(least, most) // BLOCK)]

    while len(turns) < shape.sessions:
        size = min(chance.randint(1, shape.most), shape.sessions - len(turns))
        shared, began = keys(500, 50_000), chance.random() * shape.span_s
        within = keys(500, 10_000)
        spread_s = chance.choice((0.0, 0.01, 1.0))
        for _ in range(size):
            half = within if chance.random() < 0.3 else []
            turns.append(
                Turn(
                    f"t{len(turns)}",
                    began + chance.random() * spread_s,
                    [*shared, *half, *keys(BLOCK, 5000)],
                    chance.choice(shape.priorities),
                    fails=chance.random() < shape.trouble,
                    loses_notice=chance.random() < shape.trouble,
                )
            )
    return turns


def simulate(shape: Shape, seed: int = 1) -> Result:
    """Plays the drawn sessions."""
    return Deployment(shape, draw(shape, seed)).run()
