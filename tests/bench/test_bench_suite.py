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
from bench.sides import BASE, OURS, Turnwire, Up
from bench.stub import port_of, serve, steady

SIZES = Sizes(
    idle_s=0.01, hold_streams=3, hold_tokens=2, hold_delay_ms=1, hold_ramp_s=0.01, requests=1
)


class Stub:
    """A side that answers with a canned stream."""

    parts = ("idle", "hold")

    def __init__(self, name: str, log: list[str], pid: int | None = None) -> None:
        self.name = self.described = name
        self._log = log
        self._pid = os.getpid() if pid is None else pid

    def fit(self, sizes: Sizes) -> Sizes:
        return sizes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Up]:
        self._log.append(f"+{self.name}")
        server = await serve(steady(8, 1))
        target = Target("127.0.0.1", port_of(server))
        pids = {"server": self._pid}
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


def test_process_that_is_gone_spoils_its_part_only(tmp_path: Path) -> None:
    made = new_record(OURS, "gone", repeat=1)
    run(made, tmp_path / "r.json", [Stub(OURS, []), Stub("gone", [], pid=2**22 - 3)])
    problems = [(entry.side, entry.part) for entry in made.entries if entry.problem]
    assert problems == [("gone", "idle"), ("gone", "hold")]
    assert len(made.failed) == 2
    assert made.has(OURS, 1, "hold")
    assert not made.has("gone", 1, "hold")


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


def test_unknown_parts_and_bases_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert suite.main(["--parts", "ttft,speed"]) == 1
    assert "no such part: speed" in capsys.readouterr().err
    assert suite.main(["--base", str(tmp_path)]) == 1
    assert "no checkout of Turnwire" in capsys.readouterr().err


@pytest.mark.slow
def test_base_is_another_checkout(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    asked = suite.arguments().parse_args(["--base", str(tmp_path), "--parts", "capacity turn 20"])
    found = suite.sides(asked, ["--slots=3"], lambda line: None)
    base = found[1]
    assert isinstance(base, Turnwire)
    assert (base.name, base.root, base.flags) == (BASE, tmp_path.resolve(), ("--slots=3",))
    assert "no commit" in base.described
    made, _ = suite.open_record(asked, found, QUICK)
    assert made.label == "alone-capacity"


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
