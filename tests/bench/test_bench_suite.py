"""The suite on sides of some lines: the order, the file, going on, the table and the page."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench import page, record, suite, summary
from bench.apis import APIS
from bench.charts import bars, lines, stacked
from bench.client import Target
from bench.cpu import Cost, Memory
from bench.measuring import Site
from bench.parts import PARTS, QUICK, Sizes
from bench.record import Entry, Record, SideFacts
from bench.report import this_machine
from bench.rows import Case, Row, make_row
from bench.sameness import Check
from bench.sides import BASE, OURS, Turnwire, Up
from bench.stats import Spread
from bench.stub import port_of, serve, steady

pytestmark = pytest.mark.slow

SIZES = Sizes(
    idle_s=0.01, hold_streams=3, hold_tokens=2, hold_delay_ms=1, hold_ramp_s=0.01, requests=1
)


class Stub:
    """A side that answers with a canned stream."""

    def __init__(self, name: str, log: list[str], pid: int | None = None) -> None:
        self.name = self.described = name
        self._log = log
        self._pid = os.getpid() if pid is None else pid

    parts = ("idle", "hold")

    def fit(self, sizes: Sizes) -> Sizes:
        return sizes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Up]:
        self._log.append(f"+{self.name}")
        server = await serve(steady(8, 1))
        target = Target("127.0.0.1", port_of(server))
        try:
            yield Up(
                Site(target=target, api=APIS["messages"], model="m", pids={"server": self._pid}),
                0.5,
            )
        finally:
            server.close()
            self._log.append(f"-{self.name}")


def fresh_record(*names: str, repeat: int = 2) -> Record:
    return Record(
        "2026-01-01T00:00:00Z", "test", this_machine(), repeat, {}, [SideFacts(n, n) for n in names]
    )


def run(made: Record, path: Path, sides: list[Stub]) -> None:
    asyncio.run(suite.Suite(made, path, sides, SIZES, lambda line: None).run(["idle", "hold"]))


def test_sides_take_turns_and_every_repeat_starts_them_anew(tmp_path: Path) -> None:
    log: list[str] = []
    path = tmp_path / "result.json"
    made = fresh_record(OURS, "peer")
    run(made, path, [Stub(OURS, log), Stub("peer", log)])
    assert log == [f"+{OURS}", "+peer", "-peer", f"-{OURS}"] * 2
    order = [(e.repeat, e.part, e.side) for e in made.entries]
    once = [("idle", OURS), ("idle", "peer"), ("hold", OURS), ("hold", "peer")]
    assert order == [(repeat, part, side) for repeat in (1, 2) for part, side in once]
    read = record.load(path)
    assert (read.finished, read.failed, read.side("peer").start_s) == (
        made.finished,
        [],
        [0.5, 0.5],
    )
    (idle, hold) = read.rows(OURS)
    assert (hold.case.clients, hold.requests, hold.runs, hold.memory["server"].rss > 1) == (
        3,
        3,
        2,
        True,
    )
    assert idle.case.scenario == "idle"


def test_a_run_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    log: list[str] = []
    path = tmp_path / "result.json"
    made = fresh_record(OURS, "peer")
    sides = [Stub(OURS, log), Stub("peer", log)]
    run(made, path, sides)
    cut = record.load(path)
    cut.entries = [e for e in cut.entries if (e.side, e.repeat, e.part) != ("peer", 2, "hold")]
    log.clear()
    run(cut, path, sides)
    assert log == ["+peer", "-peer"]
    assert cut.has("peer", 2, "hold")


def test_a_process_that_is_gone_spoils_its_part_only(tmp_path: Path) -> None:
    log: list[str] = []
    made = fresh_record(OURS, "gone", repeat=1)
    run(made, tmp_path / "r.json", [Stub(OURS, log), Stub("gone", log, pid=2**22 - 3)])
    problems = {(e.side, e.part): bool(e.problem) for e in made.entries}
    assert problems == {
        (OURS, "idle"): False,
        (OURS, "hold"): False,
        ("gone", "idle"): True,
        ("gone", "hold"): True,
    }
    assert len(made.failed) == 2
    assert not made.has("gone", 1, "hold")


def test_a_run_that_is_terminated_stops_its_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(site: Site, sizes: Sizes) -> AsyncIterator[Row]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        yield row(Case("idle", "messages", "keepalive"))

    monkeypatch.setitem(PARTS, "idle", endless)
    log: list[str] = []
    made = fresh_record(OURS)
    with pytest.raises(asyncio.CancelledError):
        run(made, tmp_path / "r.json", [Stub(OURS, log)])
    assert log == [f"+{OURS}", f"-{OURS}"]
    assert not made.finished


def row(
    case: Case, p50: float = 1.0, tokens: int = 100, cpu_s: float = 0.001, failed: int = 0
) -> Row:
    made = make_row(
        case,
        APIS["messages"],
        [],
        Cost({"frontend": cpu_s}, 0, 0),
        {"frontend": Memory(100, 100, 90)},
    )
    spread = Spread(1, p50, p50, p50, p50, p50)
    return msgspec.structs.replace(
        made, ttft_ms=spread, itl_ms=spread, gap_ms=spread, worst_gap_ms=spread, dispatch_ms=spread, tokens=tokens,
        tokens_per_s=float(tokens), requests=1, failed=failed, errors={"no": failed} if failed else {},
        prompt_tokens=52_000, wall_s=1.0,
    )  # fmt: skip


def filled() -> Record:
    made = fresh_record(OURS, "peer", repeat=1)
    cases = [
        Case("ttft", "messages", "keepalive", prompt="large tail"),
        Case("ttft", "messages", "fresh", prompt="small tail"),
        Case("stream", "messages", "keepalive", clients=64, delay_ms=0.0, tokens=512),
        Case("stream", "messages", "keepalive", clients=1, delay_ms=0.0, tokens=512),
        Case("dispatch", "messages", "keepalive", script="call_then_text", clock="marks: body"),
        Case("capacity", "messages", "fresh", prompt="known prefix", clients=16, tokens=16),
        Case("idle", "messages", "keepalive"),
        Case("hold", "messages", "keepalive", clients=1000, delay_ms=500.0),
    ]
    made.put(Entry(OURS, 1, "all", 1.0, [row(case) for case in cases]))
    made.put(Entry("peer", 1, "all", 1.0, [row(case, p50=8.0, tokens=50) for case in cases]))
    made.put(Entry(OURS, 1, "capacity known", 1.0, []))
    made.checks.append(Check("messages", 4, 20, 9, []))
    return made


def test_lines_have_both_sides_and_a_ratio() -> None:
    found = {(line.group, line.what, line.unit): line for line in summary.lines(filled())}
    known = found[summary.TTFT, "messages, 52K, known prefix and a new tail, keepalive", "ms"]
    assert (known.values, known.ratio(OURS, "peer")) == ({OURS: 1.0, "peer": 8.0}, 8.0)
    rate = found[summary.STREAMS, "messages, 64 streams, flat out", "tokens/s"]
    assert rate.ratio(OURS, "peer") == 2.0
    cost = found[summary.STREAMS, "messages, 64 streams, flat out", "µs of CPU per token"]
    assert cost.values[OURS] == 10.0
    held = found[summary.MEMORY, "1,000 open streams", "MiB resident"]
    assert held.values[OURS] == 100
    capacity = {
        line.unit: line.values[OURS] for line in found.values() if line.group == summary.CAPACITY
    }
    assert capacity == {
        "requests/s": 1.0,
        "first token, ms, p50": 1.0,
        "first token, ms, p99": 1.0,
        "ms of CPU per request": 1.0,
    }


def test_what_failed_has_no_figure_and_no_ratio() -> None:
    made = fresh_record(OURS, "peer", repeat=1)
    case = Case("ttft", "responses", "fresh", prompt="codex tail")
    made.put(Entry(OURS, 1, "ttft", 1.0, [row(case, p50=9.0)]))
    made.put(Entry("peer", 1, "ttft", 1.0, [row(case, failed=1)]))
    line = summary.lines(made)[0]
    assert (line.values["peer"], line.ratio(OURS, "peer")) == (None, None)
    assert made.failed == []  # a peer may refuse
    made.put(Entry(OURS, 1, "ttft", 1.0, [row(case, failed=1)]))
    assert made.failed == ["ttft responses codex tail: no"]


def test_contents_that_differ_fail_the_run() -> None:
    made = filled()
    assert made.failed == []
    made.checks.append(Check("chat", 4, 20, 9, ["contents_text: event 3"]))
    assert made.failed == ["contents on chat: contents_text: event 3"]


def test_the_table_shows_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    summary.show(filled(), Console(width=200))
    shown = capsys.readouterr().out
    assert all(line.what in shown for line in summary.lines(filled()))
    assert "all equal" in shown


PLACES = "before\n<!-- bench.capacity -->\nold\n<!-- /bench.capacity -->\n<!-- bench.page -->\nold\n<!-- /bench.page -->\nafter\n"


def saved(folder: Path, name: str, *, label: str = "peer") -> Path:
    made = filled()
    made.label = label
    made.finished = "2026-01-01T01:00:00Z"
    record.save(made, folder / name)
    return folder / name


def test_the_page_is_renewed_between_its_markers(tmp_path: Path) -> None:
    path, where = saved(tmp_path, "x-peer.json"), tmp_path / "page.md"
    where.write_text(PLACES)
    page.write(path, page.REST, where, tmp_path / "performance")
    text = where.read_text()
    assert text.startswith("before\n<!-- bench.capacity -->\nold\n")
    assert text.endswith("after\n")
    assert text.count("old") == 1
    assert "| messages, 64 streams, flat out | **100** | 50.0 | 2.0 |" in text
    assert "known prefix, 16 clients" not in text
    drawn = {plot.stem for plot in (tmp_path / "performance").glob("*.svg")}
    assert drawn == {"ttft", "ttft-fresh", "cpu", "tokens", "dispatch"}
    assert all(f"performance/{name}.svg" in text for name in drawn)
    page.write(path, summary.CAPACITY, where, tmp_path / "none")
    text = where.read_text()
    assert "old" not in text
    assert (
        "|  | requests/s: turnwire | peer | × peer | first token, ms, p50: turnwire | peer |"
        in text
    )
    assert (
        "| known prefix, 16 clients | **1.00** | 1.00 | 1.00 | **1.00** | 8.00 | **1.00** | 8.00 |"
        in text
    )
    assert not (tmp_path / "none").exists()
    where.write_text("no markers")
    with pytest.raises(ValueError, match="has no"):
        page.write(path, page.REST, where, tmp_path)


def test_the_base_of_a_comparison_is_not_on_the_page(tmp_path: Path) -> None:
    path, where = saved(tmp_path, "x-peer.json"), tmp_path / "page.md"
    made = record.load(path)
    made.sides[1].name = BASE
    record.save(made, path)
    where.write_text(PLACES)
    page.write(path, summary.CAPACITY, where, tmp_path)
    assert (
        "| known prefix, 16 clients | **1.00** | **1.00** | **1.00** | **1.00** |\n"
        in where.read_text()
    )
    assert BASE not in where.read_text()


def test_each_place_gets_the_newest_finished_result_that_has_figures_for_it(tmp_path: Path) -> None:
    record.save(filled(), tmp_path / "3-peer.json")
    saved(tmp_path, "4-peer-quick.json", label="peer-quick")
    saved(tmp_path, "5-alone.json", label="alone")
    for place in page.MARKERS:
        assert page.newest(tmp_path, place).name == "5-alone.json"
    saved(tmp_path, "1-peer.json")
    saved(tmp_path, "2-peer-capacity.json", label="peer-capacity")
    assert page.newest(tmp_path, summary.CAPACITY).name == "2-peer-capacity.json"
    assert page.newest(tmp_path, page.REST).name == "1-peer.json"
    with pytest.raises(FileNotFoundError):
        page.newest(tmp_path / "empty", page.REST)


def test_plots_show_what_they_are_given() -> None:
    assert ">12.0<" in bars("t", [("a <b>", [("x", 12.0), ("y", 1.0)])], log=True)
    assert "a &lt;b&gt;" in bars("t", [("a <b>", [("x", 12.0)])])
    assert ">3<" in stacked("t", [("a", [("x", 1.0), ("y", 2.0)])])
    drawn = lines("t", "x", "ms", {"a, one": [(1, 1), (10, 100)], "a, two": [(0, 1), (10, 10)]})
    assert drawn.count("<polyline") == 2
    assert drawn.count("stroke-dasharray") == 1
    assert drawn.count("<circle") == 3  # nothing at 0 on a logarithmic axis


def test_a_part_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--parts", "ttft,speed"]) == 1
    assert "no such part: speed" in capsys.readouterr().err


def test_a_base_is_another_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "services").mkdir()
    asked = suite.arguments().parse_args(["--base", str(tmp_path), "--parts", "capacity turn 20"])
    ours, base = suite.sides(asked, ["--slots=3"], lambda line: None)
    assert isinstance(ours, Turnwire)
    assert isinstance(base, Turnwire)
    assert (base.name, base.root, base.flags) == (BASE, tmp_path.resolve(), ("--slots=3",))
    assert "contents" in ours.parts
    assert "contents" not in base.parts
    assert "no commit" in base.described
    made, _ = suite.open_record(asked, [ours, base], QUICK)
    assert made.label == "alone-capacity"
    assert suite.main(["--base", str(tmp_path / "services")]) == 1
    assert "no checkout of Turnwire" in capsys.readouterr().err


def test_a_record_is_resumed_only_with_the_same_options(tmp_path: Path) -> None:
    log: list[str] = []
    path = tmp_path / "r.json"
    asked = suite.arguments().parse_args(["--quick", "--out", str(path)])
    made, _ = suite.open_record(asked, [Stub(OURS, log)], QUICK)
    record.save(made, path)
    again = suite.arguments().parse_args(["--quick", "--resume", str(path)])
    assert suite.open_record(again, [Stub(OURS, log)], QUICK)[0].started == made.started
    with pytest.raises(ValueError, match="another size"):
        suite.open_record(again, [Stub(OURS, log)], Sizes())
    with pytest.raises(ValueError, match="compares"):
        suite.open_record(again, [Stub(OURS, log), Stub("peer", log)], QUICK)


def test_the_page_lists_parts_that_were_measured_less_often() -> None:
    one = Record("2026-01-01T00:00:00Z", "test", this_machine(), 2, {}, [SideFacts(OURS, OURS)])
    for repeat, part, problem in (
        (1, "ttft", ""),
        (2, "ttft", ""),
        (1, "hold", ""),
        (2, "hold", "it ended"),
    ):
        one.put(Entry(OURS, repeat, part, 1.0, [], problem))
    assert "Medians of 2 (hold: 1);" in page.record_heading(one, "x.json")
