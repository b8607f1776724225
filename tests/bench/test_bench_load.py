"""The whole command against a small server, and the stack that it starts for itself."""

import asyncio
from pathlib import Path

import pytest

from bench import load, report
from bench.stack import StackFailed, own_stack
from bench.stub import port_of, serve, steady

pytestmark = pytest.mark.slow


def run_against_stub(*words: str) -> int:
    async def both() -> int:
        server = await serve(steady(8, 1))
        url = f"http://127.0.0.1:{port_of(server)}"
        status = await asyncio.to_thread(load.main, [*words, "--url", url, "--model", "m"])
        server.close()
        return status

    return asyncio.run(both())


def test_every_scenario_leaves_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.json"
    short = [
        "--requests",
        "4",
        "--streams",
        "1,3",
        "--delays",
        "0",
        "--each",
        "2",
        "--rate",
        "50",
        "--duration",
        "0.2",
    ]
    assert run_against_stub(*short, "--sizes", "small", "--out", str(out)) == 0
    run = report.load(out)
    counts = {name: sum(row.case.scenario == name for row in run.rows) for name in load.SCENARIOS}
    assert counts == {"ttft": 8, "stream": 2, "open": 1, "dispatch": 4}
    assert all(row.failed == 0 and row.tokens == 8 * row.requests for row in run.rows)
    assert all(
        row.dispatch_missing == row.requests for row in run.rows if row.case.scenario == "dispatch"
    )
    assert "time to first token" in capsys.readouterr().out


def test_failures_are_told_by_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "stream",
        "--streams",
        "2",
        "--delays",
        "0",
        "--out",
        str(tmp_path / "x"),
        "--model",
        "m",
    ]
    assert load.main([*words, "--url", "http://127.0.0.1:1", "--each", "1"]) == 1
    assert "ConnectionRefused" in capsys.readouterr().out


def test_wrong_usage() -> None:
    for words in (["nonsense"], ["--kinds", "odd"], ["--streams", "x"]):
        with pytest.raises(SystemExit) as ended:
            load.main(words)
        assert ended.value.code == 2


async def test_another_checkout_runs_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = tmp_path / "services" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    for package in (main.parent, main.parent.parent):
        (package / "__init__.py").touch()
    main.write_text(
        "import os, services; print(services.__file__, os.getcwd(), os.environ.get('TURNWIRE_PEERS'))"
    )
    monkeypatch.setenv("TURNWIRE_PEERS", "somewhere")
    with pytest.raises(StackFailed, match=rf"{main.parent.parent}/__init__.py {tmp_path} None"):
        async with own_stack(root=tmp_path):
            pass


async def test_a_stack_that_does_not_come_up_says_why() -> None:
    with pytest.raises(StackFailed, match="ended with status 2"):
        async with own_stack(["--no-such-flag"]):
            pass
