"""Two servers, the same load in turn, and the figures side by side."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench import compare, peer, report
from bench.apis import APIS
from bench.cpu import Cost
from bench.rows import Case, Row, make_row
from bench.stats import Spread
from bench.stub import port_of, serve, steady

API = APIS["messages"]


def row(scenario: str, p50: float, **changes: object) -> Row:
    made = make_row(Case(scenario, "messages", "fresh", prompt="large tail"), API, [], Cost({}, 0, 0), {})
    return replace(made, ttft_ms=Spread(1, p50, p50, p50, p50, p50), **changes)


def test_only_what_both_have_is_compared() -> None:
    ours = [row("ttft", 4), row("ttft", 6), row("ttft", 5), row("open", 3)]
    (found,) = compare.compare(ours, [row("ttft", 50), row("stream", 1)])
    assert (found.figure, found.ours, found.peers, found.ratio) == ("ttft p50 ms", 5, 50, 10)
    assert compare.described(found.case) == "ttft, large tail, fresh"


def test_a_case_that_failed_is_not_compared() -> None:
    assert list(compare.compare([row("ttft", 4)], [row("ttft", 5, failed=1)])) == []


def test_no_ratio_to_a_lag_below_zero() -> None:
    case = Case("dispatch", "messages", "fresh", script="call_then_text", clock="marks: close")
    assert compare.Comparison(case, "lag p50 ms", -9.0, 1.0).ratio is None


def test_both_are_measured_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def both() -> int:
        ours, others = await serve(steady(4, 1)), await serve(steady(4, 4))
        urls = [f"http://127.0.0.1:{port_of(server)}" for server in (ours, others)]
        words = ["stream", "--streams", "2", "--delays", "0", "--each", "1", "--repeat", "2", "--model", "m"]
        words += ["--url", urls[0], "--peer-url", urls[1], "--peer-model", "m", "--out", str(tmp_path / "run.json")]
        status = await asyncio.to_thread(peer.main, words)
        ours.close()
        others.close()
        return status

    assert asyncio.run(both()) == 0
    runs = [report.load(tmp_path / name) for name in ("run-ours.json", "run-peer.json")]
    assert [len(run.rows) for run in runs] == [2, 2]
    assert runs[0].url != runs[1].url
    said = capsys.readouterr().out
    order = [said.index(text) for text in ("ours, 1 of 2", "peer, 1 of 2", "ours, 2 of 2", "peer, 2 of 2")]
    assert order == sorted(order)
    assert "peer / ours" in said
