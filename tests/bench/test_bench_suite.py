"""The suite on sides that answer with canned streams: its order, its file, and how it goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench import record, suite
from bench.apis import APIS
from bench.client import Target
from bench.cpu import Cost
from bench.measuring import Site
from bench.parts import PARTS, QUICK, Sizes
from bench.record import Record, SideFacts
from bench.report import this_machine
from bench.rows import Case, Row, make_row
from bench.sides import OURS, Up
from tests.bench.stub import port_of, serve, steady

SIZES = Sizes(
    idle_s=0.01, hold_streams=3, hold_tokens=2, hold_delay_ms=1, hold_ramp_s=0.01, requests=1
)


class Stub:
    """A side that answers with a canned stream."""

    parts = ("idle", "hold")

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = self.described = name
        self._log = log

    def fit(self, sizes: Sizes) -> Sizes:
        return sizes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Up]:
        self._log.append(f"+{self.name}")
        server = await serve(steady(8, 1))
        target = Target("127.0.0.1", port_of(server))
        pids = {"server": os.getpid()}
        try:
            yield Up(Site(target=target, api=APIS["messages"], model="m", pids=pids), 0.5)
        finally:
            server.close()
            self._log.append(f"-{self.name}")


def new_record(*names: str, repeat: int = 2) -> Record:
    sides = [SideFacts(name, name) for name in names]
    return Record("2026-01-01T00:00:00Z", "test", this_machine(), repeat, {}, sides)


def run(made: Record, path: Path, sides: list[Stub]) -> None:
    asyncio.run(suite.Suite(made, path, sides, SIZES, lambda line: None).run(["idle", "hold"]))


def test_sides_take_turns_and_a_cut_run_goes_on(tmp_path: Path) -> None:
    log: list[str] = []
    path, sides = tmp_path / "result.json", [Stub(OURS, log), Stub("peer", log)]
    made = new_record(OURS, "peer")
    run(made, path, sides)
    assert log == [f"+{OURS}", "+peer", "-peer", f"-{OURS}"] * 2
    order = [(entry.repeat, entry.part, entry.side) for entry in made.entries]
    once = [("idle", OURS), ("idle", "peer"), ("hold", OURS), ("hold", "peer")]
    assert order == [(repeat, part, side) for repeat in (1, 2) for part, side in once]

    read = record.load(path)
    assert (read.finished, read.failed) == (made.finished, [])
    assert read.side("peer").start_s == [0.5, 0.5]
    idle, hold = read.rows(OURS)
    assert idle.case.scenario == "idle"
    assert (hold.case.clients, hold.requests, hold.failed) == (3, 3, 0)
    assert hold.memory["server"].rss > 1

    last = read.entries.pop()
    log.clear()
    run(read, path, sides)
    assert log == ["+peer", "-peer"]
    assert read.has(last.side, last.repeat, last.part)


def test_run_that_is_terminated_stops_its_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        case = Case("idle", "messages", "keepalive")
        yield make_row(case, site.api, [], Cost({}, 0, 0), {})

    monkeypatch.setitem(PARTS, "idle", endless)
    log: list[str] = []
    made = new_record(OURS)
    with pytest.raises(asyncio.CancelledError):
        run(made, tmp_path / "r.json", [Stub(OURS, log)])
    assert log == [f"+{OURS}", f"-{OURS}"]
    assert not made.finished


def test_record_is_resumed_only_with_the_same_options(tmp_path: Path) -> None:
    path, ours = tmp_path / "r.json", Stub(OURS, [])
    asked = suite.arguments().parse_args(["--quick", "--out", str(path)])
    made, _ = suite.open_record(asked, [ours], QUICK)
    record.save(made, path)
    again = suite.arguments().parse_args(["--quick", "--resume", str(path)])
    assert suite.open_record(again, [ours], QUICK)[0].started == made.started
    with pytest.raises(ValueError, match="another size"):
        suite.open_record(again, [ours], Sizes())
    with pytest.raises(ValueError, match="compares"):
        suite.open_record(again, [ours, Stub("peer", [])], QUICK)


@pytest.mark.slow
def test_suite_measures_our_own_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    options = ["--quick", "--parts", "dispatch,idle", "--out", str(path)]
    assert suite.main([*options, "--", "--parsers=2"]) == 0
    assert "| messages, call then text, from body |" in capsys.readouterr().out
    rows = record.load(path).rows(OURS)
    idle = rows[-1]
    stages = {"nats", "worker", "parser", "parser-2", "preprocessor", "frontend"}
    assert set(idle.cost.processes) == stages | {"up", "reaper"}
    assert all(held.rss > 1 for held in idle.memory.values())
    for body, close in zip(rows[:-1:2], rows[1:-1:2], strict=True):
        assert [body.dispatch_missing, close.dispatch_missing] == [0, 0]
        assert body.dispatch_ms is not None
        assert close.dispatch_ms is not None
        assert body.dispatch_ms.min > 0
        assert close.dispatch_ms.p50 < body.dispatch_ms.p50 < 200 * 10.0  # the model goes on
