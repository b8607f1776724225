"""Turns that run, end, fail and are given up at random, at two frontends with one store that is away
at times: afterwards each turn is in a sample with exactly its tokens, or is named."""

import asyncio
import json
from random import Random
from typing import Any

import pytest

from schemas.errors import Overloaded
from schemas.events import OutputTokens
from services.frontend.rollouts import turn_writer
from tests.frontend.rollouts.token_turns import Agent, Block, TokenGateway, rollout, serving_two
from tests.kit.bodies import MODEL, Json
from tests.kit.events import Step
from tests.kit.frontend import FakeTurn, Reply
from tests.kit.rollouts import MemoryBucket
from tests.kit.waiting import LIMIT_S

OPERATIONS = 60


class RandomGateway(TokenGateway):
    """Each turn writes other words, and most wait in the middle until they are released."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.waiting: list[asyncio.Event] = []
        self.decoded: dict[str, list[int]] = {}
        """The ids of each turn that was opened."""

    def steps_of(self, turn: FakeTurn) -> list[Step]:
        words = [f"{turn.id}w{number}" for number in range(self.chance.randrange(1, 9))]
        self.answers = [[Block("text", " ".join(words))]]
        steps = super().steps_of(turn)
        batches = [step for step in steps if isinstance(step, list)]
        self.decoded[turn.id] = [
            id
            for batch in batches
            for event in batch
            if isinstance(event, OutputTokens)
            for id in event.ids
        ]
        if self.chance.random() < 0.8:
            self.waiting.append(asyncio.Event())
            steps.insert(self.chance.randrange(len(steps)), self.waiting[-1])
        return steps

    def release(self) -> None:
        """Lets one turn go on."""
        if self.waiting:
            self.waiting.pop(self.chance.randrange(len(self.waiting))).set()


class Run:
    """One run of random operations."""

    def __init__(self, chance: Random, gateway: RandomGateway, agents: list[Agent]) -> None:
        self.chance = chance
        self.gateway = gateway
        self.agents = agents
        self.tasks: list[asyncio.Task[Reply]] = []
        self.histories: list[list[Json]] = [[]]

    async def ask(self, agent: Agent) -> Reply:
        """One turn, of a new conversation or of an earlier one."""
        history = self.chance.choice([[], *self.histories])
        question = {"role": "user", "content": f"Question {self.chance.randrange(5)}."}
        messages = [*history, question]
        body = {"model": MODEL, "max_tokens": 4096, "messages": messages}
        reply = await agent.served.post(f"/rollouts/{agent.id}/v1/messages", body)
        if reply.status == 200:
            answer = {"role": "assistant", "content": reply.json["content"]}
            self.histories.append([*messages, answer])
        return reply

    async def step(self, bucket: MemoryBucket) -> None:
        """Does something."""
        match self.chance.randrange(12):
            case 0:
                bucket.is_away = not bucket.is_away
            case 1:
                self.gateway.refusal = None if self.gateway.refusal else Overloaded("full")
            case 2 if self.tasks:
                self.chance.choice(self.tasks).cancel()
            case 3:
                bucket.loses_acknowledgements = not bucket.loses_acknowledgements
            case 4 | 5:
                self.gateway.release()
            case _:
                agent = self.chance.choice(self.agents)
                self.tasks.append(asyncio.create_task(self.ask(agent)))
        await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.001, 0.005)))

    async def settle(self, bucket: MemoryBucket) -> list[Reply]:
        """Lets everything end; returns the answers."""
        bucket.is_away = bucket.loses_acknowledgements = False
        while any(not task.done() for task in self.tasks):
            self.gateway.release()
            await asyncio.sleep(0.001)
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        return [reply for reply in ended if isinstance(reply, Reply)]


async def lines_of(agent: Agent) -> list[Json]:
    """The samples and the last line, once no turn runs."""
    while True:
        reply = await agent.call("GET", "/samples")
        lines: list[Any] = [json.loads(line) for line in reply.body.splitlines()]
        if "running" not in [turn["why"] for turn in lines[-1]["missing"]]:
            return lines
        await asyncio.sleep(0.01)


async def agreed_lines(first: Agent, second: Agent) -> list[Json]:
    """The lines of the first frontend, once the second one has the same samples: a turn may be
    stored between two reads."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            *samples, last = await lines_of(first)
            *others, _ = await lines_of(second)
            if others == samples:
                return [*samples, last]
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(12))
async def test_each_turn_is_whole_or_named(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_writer, "RETRY_S", 0.01)
    chance = Random(seed)
    gateway = RandomGateway(chance)
    async with serving_two(gateway) as (first, second, processes):
        if seed % 3 == 0:
            for process in processes:
                process.peers.clear()  # all notices are lost
        processes[0].memory.delay_s = chance.choice((0.0, 0.002))
        here = await rollout(first)
        run = Run(chance, gateway, [here, Agent(second, here.document)])
        for _ in range(OPERATIONS):
            await run.step(processes[0].memory)
        replies = await run.settle(processes[0].memory)
        if seed % 2:
            await here.call("POST", "/abort")
        *samples, last = await agreed_lines(*run.agents)
    missing = {turn["turn"]: turn["why"] for turn in last["missing"]}
    spans = {
        turn["turn"]: sample["ids"][turn["start"] : turn["end"]]
        for sample in samples
        for turn in sample["turns"]
    }
    assert not {*spans} & {*missing}
    assert {*gateway.decoded} <= {*spans} | {*missing}
    assert {turn: gateway.decoded[turn] for turn in spans} == spans
    assert sum(sum(sample["loss_mask"]) for sample in samples) == sum(map(len, spans.values()))
    answered = [reply.json["id"].removeprefix("msg_") for reply in replies if reply.status == 200]
    assert {*answered} <= {*spans}
    assert {*missing.values()} <= {"refused", "cancelled", "aborted"}
