"""The commands, each in its shortest form: against servers of some lines, and on real stacks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from bench import capacity, fanout, prefixes, report
from bench.apis import APIS
from bench.client import Target
from bench.measuring import Site
from bench.rows import Row
from tests.bench.stub import Answer, closing, port_of, send, serve
from tests.kit.frontend import MODEL, FakeGateway, serving

Measure = Callable[[Site], AsyncIterator[Row]]


async def rows(answer: Answer, measure: Measure) -> list[Row]:
    server = await serve(answer)
    target = Target("127.0.0.1", port_of(server))
    try:
        site = Site(target=target, api=APIS["messages"], model="m", seed=7)
        return [row async for row in measure(site)]
    finally:
        server.close()


class Agent:
    """Answers with a call, and keeps how many messages each request had."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    async def answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.lengths.append(len(json.loads(body)["messages"]))
        block = {"type": "tool_use", "id": f"toolu_{len(self.lengths)}", "name": "f", "input": {}}
        call = {"type": "input_json_delta", "partial_json": "{}"}
        documents = [
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": call},
            {"type": "content_block_stop", "index": 0},
        ]
        events = [
            b"event: content_block_delta\ndata: %b\n\n" % json.dumps(document).encode()
            for document in documents
        ]
        await send(writer, [*events, closing(3)])


async def test_sessions_are_played_up_to_the_turn_and_continued_in_each_case() -> None:
    agent, loads = Agent(), ((1, 1), (2, 3))
    measured = await rows(agent.answer, lambda site: capacity.turns(site, 3, loads, 2, 60))
    assert [(row.case.prompt, row.requests, row.failed) for row in measured] == [
        ("session at turn 3", 2, 0),
        ("session at turn 3", 6, 0),
    ]
    played, first, second = agent.lengths[:6], agent.lengths[6:8], agent.lengths[8:]
    assert sorted(played) == [1, 1, 1, 3, 3, 3]
    assert first == [5, 7]
    assert sorted(second) == [5, 5, 5, 7, 7, 7]


async def test_prefixes_are_measured() -> None:
    async with serving(FakeGateway()) as served:
        figures = await prefixes.measure(
            str(served.url), MODEL, tokens=500, requests=2, stack="stripped"
        )
        assert len(served.gateway.turns) == 4 * 3
    assert len({figure.variant for figure in figures}) == 4
    for figure in figures:
        assert (figure.prompt_tokens, figure.cached_tokens) == (656, 600)
    assert set(prefixes.ratios(figures)) == {f"{name}, stripped" for name in prefixes.RATIOS}


@pytest.mark.slow
async def test_held_siblings_compute_one_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "CASES", ((8, 1),))
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert await asyncio.to_thread(fanout.main, ["--rounds", "1"]) == 0
    (out,) = tmp_path.iterdir()
    held, not_held = msgspec.json.decode(out.read_bytes(), type=fanout.Result).figures
    assert held.computed <= 1.15
    assert not_held.computed > 7
    assert held.p95_ms < not_held.p50_ms
