"""The suite on sides that answer with canned streams: its order, its file, its figures and its
page; and the commands on real stacks."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bench import fanout, page, prefixes, record, report, suite, threads
from bench.parts import Sizes
from bench.record import Record, SideFacts
from bench.report import this_machine
from bench.sides import OURS, Side
from bench.stack import Running
from bench.summary import CAPACITY, Line
from tests.bench.stub import OPENING, closing, delta, send, serve
from tests.kit.bodies import MODEL
from tests.kit.frontend import FakeGateway, serving

SIZES = Sizes(
    idle_s=0.01,
    hold_streams=3,
    hold_tokens=2,
    hold_delay_ms=1,
    hold_ramp_s=0.01,
    streams=(2,),
    delays_ms=(0.0,),
    tokens=8,
    side_streams=(),
    single_events=(),
    prompt_loads=((1, 2),),
)
PARTS_OF_THE_TEST = ["capacity known", "stream", "idle", "hold"]


def stub(name: str, log: list[str]) -> Side:
    """A side that answers with a canned stream."""

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        await send(writer, [OPENING, *[delta("word ")] * 8, closing(8)])

    @asynccontextmanager
    async def opened() -> AsyncIterator[Running]:
        log.append(f"+{name}")
        server, target = await serve(answer)
        url = f"http://{target.host}:{target.port}"
        try:
            yield Running(url, "m", {"server": os.getpid()}, Path(), 0.5)
        finally:
            server.close()
            log.append(f"-{name}")

    return Side(name, name, opened)


def run(made: Record, path: Path, sides: list[Side]) -> None:
    ran = suite.Suite(made, path, sides, SIZES, lambda line: None)
    asyncio.run(ran.run(PARTS_OF_THE_TEST))


def test_sides_take_turns_and_a_cut_run_goes_on(tmp_path: Path) -> None:
    log: list[str] = []
    path, sides = tmp_path / "result.json", [stub(OURS, log), stub("peer", log)]
    facts = [SideFacts(side.name, side.described) for side in sides]
    made = Record("2026-01-01T00:00:00Z", "test", this_machine(), 2, {}, facts)
    run(made, path, sides)
    assert log == [f"+{OURS}", "+peer", "-peer", f"-{OURS}"] * 6
    order = [(entry.part, entry.side) for entry in made.entries]
    assert order == [(part, side.name) for part in PARTS_OF_THE_TEST for side in sides] * 2

    read = record.load(path)
    assert (read.finished, read.failed) == (made.finished, [])
    assert read.side("peer").start_s == [0.5] * 6
    known, stream, idle, hold = read.rows(OURS)
    assert (known.case.prompt, known.requests, known.prompt_tokens) == ("known prefix", 2, 10)
    assert (stream.case.clients, stream.tokens, stream.failed) == (2, 32, 0)
    assert idle.case.scenario == "idle"
    assert (hold.case.clients, hold.requests, hold.failed) == (3, 3, 0)
    assert hold.memory["server"].rss > 1

    last = read.entries.pop()
    log.clear()
    run(read, path, sides)
    assert log == ["+peer", "-peer"]
    assert read.has(last.side, last.repeat, last.part)

    where = tmp_path / "page.md"
    where.write_text(
        "before\n<!-- bench.capacity -->\nold\n<!-- /bench.capacity -->\n"
        "<!-- bench.page -->\nold\n<!-- /bench.page -->\nafter\n"
    )
    page.write(path, page.REST, where)
    text = where.read_text()
    assert text.startswith("before\n<!-- bench.capacity -->\nold\n")
    assert text.endswith("after\n")
    assert "| messages, 2 streams, flat out | **" in text
    assert "| 3 open streams | MiB resident | **" in text
    assert "known prefix" not in text
    page.write(path, CAPACITY, where)
    text = where.read_text()
    assert "old" not in text
    assert "|  | requests/s: turnwire | peer | × peer | first token, ms, p50: turnwire |" in text
    assert "| known prefix, 1 client | **" in text

    read.entries = [entry for entry in read.entries if entry.part == "capacity known"]
    record.save(read, path)
    page.write(path, page.REST, where)
    assert where.read_text() == text, "a run of one part does not replace the others"


@pytest.mark.parametrize("more", [False, True])
def test_no_ratio_without_a_figure(more: bool) -> None:
    def ratio(ours: float | None, peer: float | None) -> float | None:
        values = {OURS: ours, "peer": peer}
        return Line("CPU", "idle", "ms", values, more).best_ratio(OURS)

    assert ratio(2.0, 4.0) == (0.5 if more else 2.0)
    for missing in (0.0, -1.0, None):
        assert ratio(2.0, missing) is None
        assert ratio(missing, 2.0) is None


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
def test_suite_measures_our_own_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    options = ["--quick", "--parts", "dispatch,idle", "--out", str(path)]
    assert suite.main([*options, "--", "--parsers=2"]) == 0
    assert "| messages, call then text, from body |" in capsys.readouterr().out
    rows = record.load(path).rows(OURS)
    stages = {"nats", "worker", "parser", "parser-2", "preprocessor", "frontend"}
    assert set(rows[-1].cost.processes) == stages | {"up", "reaper"}
    for body, close in zip(rows[:-1:2], rows[1:-1:2], strict=True):
        assert [body.dispatch_missing, close.dispatch_missing] == [0, 0]
        assert body.dispatch_ms is not None
        assert close.dispatch_ms is not None
        assert body.dispatch_ms.min > 0
        assert close.dispatch_ms.p50 < body.dispatch_ms.p50 < 200 * 10.0  # the model goes on


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


@pytest.mark.slow
async def test_requests_of_a_thread_are_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert await asyncio.to_thread(threads.main, ["--history", "3", "--turns", "2"]) == 0
    (out,) = tmp_path.iterdir()
    thread, whole = msgspec.json.decode(out.read_bytes(), type=threads.Result).figures
    assert thread.request_bytes < 4000 < whole.request_bytes
    assert min(thread.cpu_ms.values()) > 0
