"""From exchanges to figures, and the medians of several runs."""

from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.apis import APIS
from bench.cpu import Cost, Memory
from bench.exchange import Exchange
from bench.rows import Case, Row, make_row, medians
from bench.stats import quantile, spread
from bench.stub import closing, delta, opening

API = APIS["messages"]
MS = 1_000_000
CASE = Case("stream", "messages", "keepalive", clients=2, delay_ms=0.0, tokens=4)


def exchange(due_ms: int, first_ms: int, tokens: int) -> Exchange:
    one = Exchange(due_ms * MS)
    one.status, one.sent = 200, (due_ms + 1) * MS
    one.first_byte = first_ms * MS
    one.body(first_ms * MS, opening() + delta("a"), API.output)
    one.body((first_ms + 10) * MS, delta("b") + closing(tokens), API.output)
    one.close((first_ms + 10) * MS, API)
    return one


def row(scale: float = 1.0) -> Row:
    failed = Exchange(0)
    failed.fail(1, "refused")
    cost = Cost({"parser": 0.001 * scale, "frontend": 0.003 * scale}, 0.1, 0.02)
    exchanges = [exchange(0, 50, 4), exchange(0, 10, 4), exchange(2, 14, 4), failed]
    return make_row(CASE, API, exchanges, cost, {"parser": Memory(10, 20)})


def test_quantiles_are_figures_that_were_measured() -> None:
    assert [quantile([1, 2, 3, 4, 10], share) for share in (0, 0.5, 0.99, 1)] == [1, 3, 10, 10]
    assert spread([None]) is None
    some = spread([3.0, None, 1.0, 2.0])
    assert some is not None
    assert (some.count, some.min, some.p50, some.max) == (3, 1.0, 2.0, 3.0)


def test_figures() -> None:
    made = row()
    assert (made.requests, made.failed, made.errors) == (4, 1, {"refused": 1})
    assert (made.tokens, made.events, made.prompt_tokens) == (12, 6, 10)
    assert made.wall_s == 0.06
    assert made.tokens_per_s == 200.0
    assert made.ttft_ms is not None
    assert (made.ttft_ms.count, made.ttft_ms.p50, made.ttft_ms.max) == (3, 12.0, 50.0)
    assert made.itl_ms is not None
    assert made.itl_ms.p50 == 10.0
    assert made.cpu_us_per_token == pytest.approx({"parser": 83.333, "frontend": 250.0}, rel=1e-4)
    assert made.disturbed == pytest.approx(0.333, rel=1e-2)


def test_the_first_of_a_sequence_stands_alone() -> None:
    cost = Cost({}, 0.0, 0.0)
    made = make_row(CASE, API, [exchange(0, 50, 4), exchange(61, 71, 4)], cost, {}, sequence=True)
    assert made.first_ttft_ms == 50.0
    assert made.ttft_ms is not None
    assert (made.ttft_ms.count, made.ttft_ms.max) == (1, 10.0)


def test_all_failed() -> None:
    failed = Exchange(0)
    failed.fail(1, "refused")
    made = make_row(CASE, API, [failed], Cost({"parser": 1.0}, 0.0, 0.0), {})
    assert (made.tokens, made.ttft_ms, made.cpu_us_per_token) == (0, None, {})


def test_medians_keep_cases_apart_and_add_up_what_failed() -> None:
    other = make_row(Case("open", "messages", "fresh"), API, [], Cost({}, 0, 0), {})
    middle, alone = medians([row(1), other, row(9), row(3)])
    assert alone is other
    assert (middle.runs, middle.failed, middle.errors) == (3, 3, {"refused": 3})
    assert middle.cost.processes == pytest.approx({"parser": 0.003, "frontend": 0.009})
    assert middle.ttft_ms is not None
    assert middle.ttft_ms.count == 9


def test_a_run_is_kept_and_shown(tmp_path: Path) -> None:
    ttft = make_row(
        Case("ttft", "messages", "fresh", prompt="large tail"), API, [], Cost({"a": 1}, 0, 0), {}
    )
    lag = make_row(
        Case("dispatch", "messages", "fresh", delay_ms=10.0, script="x"),
        API,
        [],
        Cost({}, 0, 0),
        {},
    )
    run = report.Run(
        report.now(), "try", "http://x", "m", report.this_machine(), [row(), ttft, lag], 1.5
    )
    path = report.save(run, tmp_path / "new" / "run.json")
    assert report.load(path) == run
    console = Console(width=200, record=True, file=(tmp_path / "text").open("w"))
    report.show(run, console)
    text = console.export_text()
    assert "large tail" in text
    assert "1 failed stream 2: refused" in text
    assert "250.0" in text
    assert "up after 1.5 s" in text
