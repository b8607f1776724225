"""From exchanges to figures, lines of two sides, and the page."""

from pathlib import Path

import msgspec
import pytest

from bench import page, record, summary
from bench.apis import APIS
from bench.client import Mode
from bench.cpu import Cost, Memory
from bench.exchange import Exchange
from bench.record import Entry, Record, SideFacts
from bench.report import this_machine, write
from bench.rows import Case, Row, make_row, medians
from bench.sides import OURS
from tests.bench.stub import closing, delta, opening

API = APIS["messages"]
MS = 1_000_000
KEPT: Mode = "keepalive"
STREAM = Case("stream", "messages", KEPT, clients=64, delay_ms=0.0, tokens=4)
COST = Cost({"parser": 0.001, "frontend": 0.003}, 0.1, 0.02)


def exchange(due_ms: int, first_ms: int, tokens: int = 4) -> Exchange:
    """An answer of two words, 10 ms apart."""
    one = Exchange(due_ms * MS)
    one.status, one.sent = 200, (due_ms + 1) * MS
    one.body(first_ms * MS, opening() + delta("a"), API.output)
    one.body((first_ms + 10) * MS, delta("b") + closing(tokens), API.output)
    one.close((first_ms + 10) * MS, API)
    return one


def refused() -> Exchange:
    failed = Exchange(0)
    failed.fail(1, "refused")
    return failed


def row(case: Case = STREAM, scale: int = 1, *, fail: bool = False) -> Row:
    """A row; `scale`: how many times slower and dearer."""
    cost = Cost({"frontend": 0.004 * scale}, 0.1, 0.0)
    exchanges = [exchange(0, 10 * scale)]
    if fail:
        exchanges.append(refused())
    return make_row(case, API, exchanges, cost, {"frontend": Memory(100, 100, 90)})


def test_row_has_the_figures_of_its_exchanges() -> None:
    exchanges = [exchange(0, 50), exchange(0, 10), exchange(2, 14), refused()]
    made = make_row(STREAM, API, exchanges, COST, {})
    assert (made.requests, made.failed, made.errors) == (4, 1, {"refused": 1})
    assert (made.tokens, made.events, made.prompt_tokens) == (12, 6, 10)
    assert (made.wall_s, made.tokens_per_s, made.requests_per_s) == (0.06, 200.0, 50.0)
    assert made.ttft_ms is not None
    assert (made.ttft_ms.count, made.ttft_ms.p50, made.ttft_ms.max) == (3, 12.0, 50.0)
    assert made.itl_ms is not None
    assert made.itl_ms.p50 == 10.0
    assert made.cpu_us_per_token == pytest.approx(333.333, rel=1e-4)
    assert made.cpu_ms_per_request == pytest.approx(1.0)
    assert made.disturbed == pytest.approx(0.333, rel=1e-2)

    later = make_row(STREAM, API, [exchange(0, 50), exchange(61, 71)], COST, {}, sequence=True)
    assert later.ttft_ms is not None
    assert (later.ttft_ms.count, later.ttft_ms.max) == (1, 10.0)


def test_medians_keep_cases_apart_and_add_up_failures() -> None:
    other = row(Case("ttft", "messages", "fresh"))
    middle, alone = medians([row(), other, row(scale=9, fail=True), row(scale=3, fail=True)])
    assert alone is other
    assert (middle.failed, middle.errors) == (2, {"refused": 2})
    assert middle.cost.processes == pytest.approx({"frontend": 0.012})
    assert middle.ttft_ms is not None
    assert (middle.ttft_ms.count, middle.ttft_ms.p50) == (3, 30.0)


CASES = [
    Case("ttft", "messages", KEPT, prompt="large tail"),
    STREAM,
    Case("dispatch", "messages", KEPT, script="call_then_text", clock="marks: body"),
    Case("capacity", "messages", "fresh", prompt="known prefix", clients=16, tokens=16),
    Case("idle", "messages", KEPT),
    Case("hold", "messages", KEPT, clients=1000, delay_ms=500.0),
]


def filled(label: str = "peer", peer: str = "peer") -> Record:
    """A record of two sides; the peer is ten times slower."""
    sides = [SideFacts(name, name) for name in (OURS, peer)]
    made = Record("2026-01-01T00:00:00Z", label, this_machine(), 1, {}, sides)
    made.put(Entry(OURS, 1, "all", 1.0, [row(case) for case in CASES]))
    made.put(Entry(peer, 1, "all", 1.0, [row(case, scale=10) for case in CASES]))
    made.put(Entry(OURS, 1, "capacity known", 1.0, []))
    return made


def test_lines_have_both_sides_and_a_ratio() -> None:
    lines = summary.lines(filled())
    found = {(line.group, line.what, line.unit): line for line in lines}
    known = found[summary.TTFT, "messages, 52K, known prefix and a new tail, keepalive", "ms"]
    assert known.values == {OURS: 10.0, "peer": 100.0}
    assert known.ratio(OURS, "peer") == 10.0
    rate = found[summary.STREAMS, "messages, 64 streams, flat out", "tokens/s"]
    assert rate.values == {OURS: 200.0, "peer": 36.4}
    assert rate.ratio(OURS, "peer") == pytest.approx(5.5, rel=0.01)
    cost = found[summary.STREAMS, "messages, 64 streams, flat out", "µs of CPU per token"]
    assert cost.values[OURS] == pytest.approx(1000.0)
    assert found[summary.MEMORY, "1,000 open streams", "MiB resident"].values[OURS] == 100


def save(folder: Path, name: str, made: Record) -> Path:
    made.finished = "2026-01-01T01:00:00Z"
    record.save(made, folder / name)
    return folder / name


PLACES = (
    "before\n<!-- bench.capacity -->\nold\n<!-- /bench.capacity -->\n"
    "<!-- bench.page -->\nold\n<!-- /bench.page -->\nafter\n"
)


def test_page_is_replaced_between_its_markers(tmp_path: Path) -> None:
    path, where = save(tmp_path, "x-peer.json", filled()), tmp_path / "page.md"
    where.write_text(PLACES)
    page.write(path, page.REST, where)
    text = where.read_text()
    assert text.startswith("before\n<!-- bench.capacity -->\nold\n")
    assert text.endswith("after\n")
    assert text.count("old") == 1
    assert "| messages, 64 streams, flat out | **200** | 36.4 | 5.5 |" in text
    assert "known prefix, 16 clients" not in text

    page.write(path, summary.CAPACITY, where)
    text = where.read_text()
    assert "old" not in text
    assert "|  | requests/s: turnwire | peer | × peer | first token, ms, p50: turnwire |" in text
    assert "| known prefix, 16 clients | **50.0** | 9.09 | 5.50 | **10.0** | 100 |" in text
    where.write_text("no markers")
    with pytest.raises(ValueError, match="has no"):
        page.write(path, page.REST, where)


@pytest.mark.parametrize("status", [0, 9])
def test_result_names_the_gpus(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 'NVIDIA H100 80GB HBM3'\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    write(this_machine(), tmp_path / "result.json")
    machine = msgspec.json.decode((tmp_path / "result.json").read_bytes())
    assert machine["gpus"] == ([] if status else ["NVIDIA H100 80GB HBM3"])
