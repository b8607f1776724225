"""Capacity, measured on servers of some lines."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bench import capacity
from bench.apis import APIS
from bench.client import Target
from bench.measuring import Site
from bench.rows import Row
from bench.stub import Answer, closing, delta, opening, port_of, send, serve, steady
from tests.bench.test_bench_bodies import answer

pytestmark = pytest.mark.slow

Measure = Callable[[Site], AsyncIterator[Row]]


async def rows(reply: Answer, measure: Measure) -> list[Row]:
    server = await serve(reply)
    site = Site(
        target=Target("127.0.0.1", port_of(server)), api=APIS["messages"], model="m", seed=7
    )
    try:
        return [row async for row in measure(site)]
    finally:
        server.close()


async def test_prompts_come_from_many_clients_at_once() -> None:
    bodies: list[bytes] = []
    canned = steady(4, 1)

    def keeping(body: bytes, writer: asyncio.StreamWriter) -> Awaitable[None]:
        bodies.append(body)
        return canned(body, writer)

    one, many = await rows(
        keeping, lambda site: capacity.prompts(site, "fresh", ((1, 2), (3, 6)), 60)
    )
    assert [(row.case.clients, row.requests, row.failed) for row in (one, many)] == [
        (1, 2, 0),
        (3, 6, 0),
    ]
    assert many.case.prompt == "all of it new"
    assert many.requests_per_s is not None
    assert many.requests_per_s > 0
    texts = {json.loads(body)["system"][-1]["text"][:200] for body in bodies}
    assert len(texts) == len(bodies) == 2 * capacity.WARMING + 8


async def test_no_request_begins_after_the_limit() -> None:
    (row,) = await rows(steady(4, 1), lambda site: capacity.prompts(site, "tail", ((2, 4),), 0.0))
    assert row.requests == 0
    assert row.requests_per_s is None


class Agent:
    """Answers as the script does, and keeps how many messages each request had."""

    def __init__(self, calls: int = 1 << 20) -> None:
        """`calls`: how many turns have a call."""
        self.lengths: list[int] = []
        self._calls = calls

    async def answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.lengths.append(len(json.loads(body)["messages"]))
        if len(self.lengths) > self._calls:
            await send(writer, [opening(), delta("No."), closing(1)])
            return
        events = [
            b"event: content_block_delta\n%b\n\n" % event
            for _, event in answer(f"toolu_{len(self.lengths)}")
        ]
        await send(writer, [*events, closing(3)])


async def test_sessions_are_played_up_to_the_turn_and_continued_in_each_case() -> None:
    agent = Agent()
    measured = await rows(
        agent.answer, lambda site: capacity.turns(site, 3, ((1, 1), (2, 3)), 2, 60)
    )
    assert [(row.case.prompt, row.case.clients, row.requests, row.failed) for row in measured] == [
        ("session at turn 3", 1, 2, 0),
        ("session at turn 3", 2, 6, 0),
    ]
    played, first, second = agent.lengths[:6], agent.lengths[6:8], agent.lengths[8:]
    assert sorted(played) == [1, 1, 1, 3, 3, 3]
    assert first == [5, 7]
    assert sorted(second) == [5, 5, 5, 7, 7, 7]


async def test_an_answer_without_a_call_ends_the_measurement() -> None:
    for calls in (1, 5):
        with pytest.raises(ExceptionGroup) as raised:
            await rows(Agent(calls).answer, lambda site: capacity.turns(site, 3, ((2, 2),), 2, 60))
        assert raised.group_contains(ValueError, match="without a call")


async def test_a_session_that_fails_before_its_turn_is_told() -> None:
    async def refuse(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nno")

    with pytest.raises(ValueError, match="a session before turn 2: status 500: no"):
        await rows(refuse, lambda site: capacity.turns(site, 2, ((1, 1),), 2, 60))
