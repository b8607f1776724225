"""The load generator on the real stack: four processes, a bus, and figures from each of them."""

from pathlib import Path

import pytest

from bench import load, report

pytestmark = pytest.mark.slow


def test_a_short_run_on_a_stack_of_our_own(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    words = [
        "stream",
        "dispatch",
        "--streams",
        "3",
        "--delays",
        "0",
        "--each",
        "2",
        "--tokens",
        "20",
    ]
    words += ["--requests", "6", "--scripts", "call_then_text", "--out", str(out)]
    assert load.main([*words, "--", f"--state-dir={tmp_path}", "--parsers=2"]) == 0
    run = report.load(out)
    assert run.start_s is not None

    stream, *lags = run.rows
    assert (stream.requests, stream.failed) == (6, 0)
    assert 20 <= stream.tokens / stream.requests <= 21  # a server may count the end token, too
    assert set(stream.cost.processes) == {
        "up",
        "reaper",
        "nats",
        "worker",
        "parser",
        "parser-2",
        "preprocessor",
        "frontend",
    }
    assert all(seconds > 0 for name, seconds in stream.cost.processes.items() if name != "reaper")
    assert all(held.rss > 1 for held in stream.memory.values())

    assert [row.case.clock for row in lags] == ["marks: body", "marks: close", "bus: close"]
    assert [row.dispatch_missing for row in lags] == [0, 0, 0]
    body, close, _ = lags
    assert body.dispatch_ms is not None
    assert close.dispatch_ms is not None
    assert body.dispatch_ms.min > 0
    assert close.dispatch_ms.p50 < body.dispatch_ms.p50
    assert body.turn_end_ms is not None
    assert body.dispatch_ms.p50 < body.turn_end_ms.min  # while the model goes on
