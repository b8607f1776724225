"""`python -m bench.large.weights`: simulates `router_load_tokens` for sessions of agents, in
virtual time.

Sessions share a system prompt, start on cold caches at about the same time, and call tools between
their turns. The router is the preprocessors', with a heartbeat a second. An engine's step takes a
fixed time, and more for each prompt token that it computes and each token of context. These times
are orders of magnitude, not those of a model.
"""

import argparse
import heapq
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import mean

from schemas.control import Heartbeat, Load
from services.preprocessor.routing.router import Router, TurnProfile

SLOTS, QUEUE = 256, 1024
SHARED, OWN, GROWTH, OUTPUT = 12_000, 1_000, 1_500, 300
"""Tokens of the shared system prompt, of a session's first question, of a tool's result, of an
answer."""
START_S, TOOL_S = 1.0, 2.0
"""Time in which all sessions start, and average time of a tool."""
STEP_S, PROMPT_TOKEN_S, CONTEXT_TOKEN_S = 0.010, 1 / 20_000, 30e-9
CHUNK = 8192
"""Maximum of prompt tokens in a step."""


@dataclass
class Turn:
    """A turn on an engine."""

    session: int
    began: float
    context: int
    missing: int
    """Prompt tokens to compute."""
    left: int = OUTPUT


@dataclass
class Session:
    """One session. `worker`: the one of its last turn, which has its context cached."""

    context: int = SHARED + OWN
    worker: str = ""
    turns: int = 0


@dataclass
class Engine:
    """One worker's engine, which computes prompts in the order of their arrival beside all its
    decoding."""

    id: str
    warm: bool = False
    """Whether it has the shared prompt cached."""
    stepping: bool = False
    waiting: list[Turn] = field(default_factory=list)
    running: list[Turn] = field(default_factory=list)

    def step(self) -> float:
        """Starts a step; returns its seconds."""
        room = CHUNK
        for turn in self.waiting:
            taken = min(room, turn.missing)
            turn.missing -= taken
            room -= taken
        context = sum(turn.context for turn in self.running)
        return STEP_S + (CHUNK - room) * PROMPT_TOKEN_S + context * CONTEXT_TOKEN_S

    def stepped(self) -> Iterator[Turn]:
        """Ends a step; yields the turns that have ended."""
        for turn in self.running:
            turn.left -= 1
            turn.context += 1
            if not turn.left:
                yield turn
        ready = [turn for turn in self.waiting if not turn.missing]
        self.running = [turn for turn in self.running if turn.left] + ready
        self.waiting = [turn for turn in self.waiting if turn.missing]


@dataclass
class Result:
    """`turn_s`: seconds of each turn; `computed`: prompt tokens; `moved`: turns on another worker
    than the last one."""

    turn_s: list[float] = field(default_factory=list)
    computed: int = 0
    moved: int = 0


def simulate(
    load_tokens: float, *, workers: int, sessions: int, turns: int, seed: int = 1
) -> Result:
    """Simulates all sessions, with `turns` turns each."""
    chance, result = random.Random(seed), Result()
    router = Router(load_tokens=load_tokens)
    engines = {name: Engine(name) for name in (f"worker-{number}" for number in range(workers))}
    everyone = [Session() for _ in range(sessions)]
    heartbeats: list[Heartbeat] = []
    # (time, session that sends its next turn or None, engine that ends a step)
    events: list[tuple[float, int, str]] = [
        (chance.uniform(0, START_S), n, "") for n in range(sessions)
    ]
    heapq.heapify(events)
    beat_at = 0.0
    while events:
        now, number, stepped = heapq.heappop(events)
        while now >= beat_at:
            loads = {
                one.id: Load(len(one.running) + len(one.waiting), 0, SLOTS, QUEUE)
                for one in engines.values()
            }
            heartbeats = [Heartbeat("worker", name, load=load) for name, load in loads.items()]
            for heartbeat in heartbeats:
                router.reset(heartbeat)
            beat_at += 1.0
        if stepped:
            engine = engines[stepped]
            engine.stepping = False
            for turn in engine.stepped():
                result.turn_s.append(now - turn.began)
                session = everyone[turn.session]
                session.context += OUTPUT + GROWTH
                session.turns += 1
                if session.turns < turns:
                    heapq.heappush(events, (now + chance.expovariate(1 / TOOL_S), turn.session, ""))
        else:
            session = everyone[number]
            held = {one.id: SHARED for one in engines.values() if one.warm}
            if session.worker:
                held[session.worker] = session.context - GROWTH
            profile = TurnProfile(session.context, held)
            best = router.rank_workers(heartbeats, avoid=(), late=(), profile=profile)[0]
            router.assign(best)
            engine = engines[best]
            missing = session.context - held.get(best, 0)
            engine.waiting.append(Turn(number, now, session.context, missing))
            result.computed += missing
            result.moved += session.worker not in ("", best)
            engine.warm, session.worker = True, best
        if not engine.stepping and (engine.running or engine.waiting):
            engine.stepping = True
            heapq.heappush(events, (now + engine.step(), -1, engine.id))
    return result


def main() -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.large.weights", description=__doc__)
    parser.add_argument(
        "--load-tokens", type=float, nargs="*", default=[16384, 65536, 131072, 262144, 1048576]
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--sessions", type=int, nargs="*", default=[30, 100, 200, 400])
    parser.add_argument("--turns", type=int, default=10)
    asked = parser.parse_args()
    print(
        "| `router_load_tokens` |",
        " | ".join(f"{sessions} sessions" for sessions in asked.sessions),
        "|",
    )
    print("|", " | ".join(["--:"] * (len(asked.sessions) + 1)), "|")
    for load_tokens in asked.load_tokens:
        row = [f"{load_tokens:,.0f}"]
        for sessions in asked.sessions:
            result = simulate(
                load_tokens, workers=asked.workers, sessions=sessions, turns=asked.turns
            )
            row.append(f"{mean(result.turn_s):.1f} s, {result.computed / 1e6:.1f} M")
        print("|", " | ".join(row), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
