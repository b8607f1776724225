"""The commands, each in its shortest form: against servers of some lines, and on real stacks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from bench import capacity, fanout, load, prefixes
from bench.apis import APIS
from bench.client import Target
from bench.measuring import Site
from bench.prefixes import Turn
from bench.rows import Row
from bench.stub import Answer, closing, delta, opening, port_of, send, serve, steady
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


@pytest.mark.slow
async def test_new_prompts_of_many_clients_all_differ() -> None:
    bodies: list[bytes] = []
    canned = steady(4, 1)

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        bodies.append(body)
        await canned(body, writer)

    loads = ((1, 2), (3, 6))
    one, many = await rows(answer, lambda site: capacity.prompts(site, "fresh", loads, 60))
    assert [(row.case.clients, row.requests, row.failed) for row in (one, many)] == [
        (1, 2, 0),
        (3, 6, 0),
    ]
    texts = {json.loads(body)["system"][-1]["text"][:200] for body in bodies}
    assert len(texts) == len(bodies) == 2 * capacity.WARMING + 8

    (row,) = await rows(steady(4, 1), lambda site: capacity.prompts(site, "tail", ((2, 4),), 0.0))
    assert (row.requests, row.requests_per_s) == (0, None)


class Agent:
    """Answers with a call, and keeps how many messages each request had."""

    def __init__(self, calls: int = 1 << 20) -> None:
        """`calls`: how many turns have a call."""
        self.lengths: list[int] = []
        self._calls = calls

    async def answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.lengths.append(len(json.loads(body)["messages"]))
        if len(self.lengths) > self._calls:
            await send(writer, [opening(), delta("No."), closing(1)])
            return
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


async def test_session_that_cannot_go_on_ends_the_measurement() -> None:
    for calls in (1, 5):
        with pytest.raises(ExceptionGroup) as raised:
            await rows(Agent(calls).answer, lambda site: capacity.turns(site, 3, ((2, 2),), 2, 60))
        assert raised.group_contains(ValueError, match="without a call")

    async def refuse(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 2\r\n\r\nno")

    with pytest.raises(ValueError, match="a session before turn 2: status 500: no"):
        await rows(refuse, lambda site: capacity.turns(site, 2, ((1, 1),), 2, 60))


async def test_prefixes_are_measured_on_any_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    options = ["--requests=2", "--tokens=500", f"--out={out}"]
    async with serving(FakeGateway()) as served:
        for model, status in (("nobody", 1), (MODEL, 0)):
            words = [f"--url={served.url}", f"--model={model}", *options]
            assert await asyncio.to_thread(prefixes.main, words) == status
        assert len(served.gateway.turns) == 4 * 3
    assert "404" in capsys.readouterr().err
    result = msgspec.json.decode(out.read_bytes(), type=prefixes.Result)
    assert len({figure.variant for figure in result.figures}) == 4
    for figure in result.figures:
        assert (figure.prompt_tokens, figure.cached_tokens) == (656, 600)
    assert set(result.ratios) == set(prefixes.RATIOS)


async def test_load_on_a_running_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    server = await serve(steady(8, 1))
    url = f"--url=http://127.0.0.1:{port_of(server)}"
    words = ["stream", url, "--model=m", "--streams", "1", "3", "--delays", "0", f"--out={out}"]
    assert await asyncio.to_thread(load.main, words) == 0
    server.close()
    run = msgspec.json.decode(out.read_bytes(), type=load.Run)
    assert [(row.case.clients, row.failed, row.tokens) for row in run.rows] == [
        (1, 0, 8 * 40),
        (3, 0, 8 * 6),
    ]
    words[1] = "--url=http://127.0.0.1:1"
    assert await asyncio.to_thread(load.main, words) == 1
    assert "ConnectionRefused" in capsys.readouterr().out


@pytest.mark.slow
def test_load_on_a_stack_of_our_own(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    words = ["stream", "dispatch", "--streams", "3", "--delays", "0", "--tokens", "20"]
    words += ["--requests", "5", f"--out={out}", "--", f"--state-dir={tmp_path}", "--parsers=2"]
    assert load.main(words) == 0
    stream, *lags = msgspec.json.decode(out.read_bytes(), type=load.Run).rows
    assert stream.failed == 0
    assert 20 <= stream.tokens / stream.requests <= 21  # a server may count the end token, too
    stages = {"nats", "worker", "parser", "parser-2", "preprocessor", "frontend"}
    assert set(stream.cost.processes) == stages | {"up", "reaper"}
    assert all(stream.cost.processes[stage] > 0 for stage in stages)
    assert all(held.rss > 1 for held in stream.memory.values())

    assert [row.dispatch_missing for row in lags] == [0] * 8
    for body, close in zip(lags[::2], lags[1::2], strict=True):
        assert [body.case.clock, close.case.clock] == ["marks: body", "marks: close"]
        assert body.dispatch_ms is not None
        assert close.dispatch_ms is not None
        assert body.dispatch_ms.min > 0
        assert close.dispatch_ms.p50 < body.dispatch_ms.p50 < 200 * 10.0  # the model goes on


@pytest.mark.slow
async def test_held_siblings_compute_one_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [Turn(1.0, 1000, 0), Turn(1.0, 1000, 950), Turn(1.0, 1000, 950)]
    assert fanout.computed(turns) == pytest.approx(1.1)

    monkeypatch.setattr(fanout, "CASES", ((8, 1),))
    out = tmp_path / "out.json"
    assert await asyncio.to_thread(fanout.main, ["--rounds", "1", f"--out={out}"]) == 0
    held, not_held = msgspec.json.decode(out.read_bytes(), type=fanout.Result).figures
    assert held.computed <= 1.15
    assert not_held.computed > 7
    assert held.p95_ms < not_held.p50_ms
