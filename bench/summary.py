"""Summarizes the results of a suite in lines: one figure of one case for every side. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeAlias

from msgspec import Struct

from bench.record import Entry, Record
from bench.report import BUSY_CORES
from bench.rows import Case, Row, Spread

MODEL_MS = 10.0
"""A token's time with a large model: each token then has an event of its own."""
RATE = "requests/s"
EVENTS = "events per token"
"""Neither more nor less is better."""
Figure: TypeAlias = Callable[[Row], float | None]
CAPACITY, TTFT, CPU, STREAMS, DISPATCH, MEMORY = (
    "Capacity: 52,000 tokens, a closed loop",
    "Time to first token, ms at the median",
    "CPU per request, ms",
    "Streams",
    "Dispatch of a complete call while the model goes on, ms",
    "Memory, start, idle",
)
ORDER = (CAPACITY, TTFT, STREAMS, DISPATCH, MEMORY, CPU)
PROMPTS = {
    "small tail": "200 tokens",
    "large tail": "52K, known prefix and a new tail",
    "large head": "52K, first seen (another beginning)",
    "large fresh": "52K, first seen (all of it new)",
}


class Line(Struct, frozen=True):
    """One figure."""

    group: str
    what: str
    unit: str
    values: dict[str, float | None]
    """The figure of each side; None: not measured."""
    more: bool = False
    """More is better."""

    def ratio(self, ours: str, peer: str) -> float | None:
        """How many times better ours is than the peer's: above 1, ours is. None without a figure
        above 0 on both sides."""
        mine, other = self.values.get(ours), self.values.get(peer)
        if not mine or not other or mine < 0 or other < 0 or self.unit == EVENTS:
            return None
        return mine / other if self.more else other / mine

    def best_ratio(self, ours: str) -> float | None:
        """How many times better ours is than the best peer's; None without one."""
        ratios = [self.ratio(ours, peer) for peer in self.values if peer != ours]
        return min((ratio for ratio in ratios if ratio is not None), default=None)


def lines(record: Record) -> list[Line]:
    """Every figure of a record, in the order in which it is shown."""
    rows = {side.name: {row.case: row for row in record.rows(side.name)} for side in record.sides}
    cases = list(dict.fromkeys(case for known in rows.values() for case in known))
    found = [line for case in cases for line in _of_case(case, rows)]
    found += _memory(record, rows, cases)
    found = [line for line in found if any(value is not None for value in line.values.values())]
    return sorted(found, key=lambda line: ORDER.index(line.group))


def _of_case(case: Case, rows: Mapping[str, Mapping[Case, Row]]) -> Iterator[Line]:
    def line(group: str, what: str, unit: str, figure: Figure) -> Line:
        values: dict[str, float | None] = {}
        for side, known in rows.items():
            row = known.get(case)
            values[side] = figure(row) if row is not None and not row.failed else None
        return Line(group, what, unit, values, more=unit in ("tokens/s", RATE))

    match case.scenario:
        case "capacity":
            what = f"{case.prompt}, {case.clients} {'client' if case.clients == 1 else 'clients'}"
            yield line(CAPACITY, what, RATE, lambda row: row.requests_per_s)
            yield line(CAPACITY, what, "first token, ms, p50", lambda row: _p50(row.ttft_ms))
            yield line(CAPACITY, what, "first token, ms, p99", lambda row: _p99(row.ttft_ms))
            yield line(CAPACITY, what, "ms of CPU per request", lambda row: row.cpu_ms_per_request)
        case "ttft":
            what = f"{case.api}, {PROMPTS.get(case.prompt, case.prompt)}, {case.mode}"
            yield line(TTFT, what, "ms", lambda row: _p50(row.ttft_ms))
            yield line(CPU, what, "ms", lambda row: row.cpu_ms_per_request)
        case "stream":
            streams = "1 stream" if case.clients == 1 else f"{case.clients} streams"
            pace = f"{case.delay_ms:g} ms a token" if case.delay_ms else "flat out"
            what = f"{case.api}, {streams}, {pace}"
            yield line(STREAMS, what, "tokens/s", lambda row: row.tokens_per_s)
            yield line(STREAMS, what, "µs of CPU per token", lambda row: row.cpu_us_per_token)
            if case.delay_ms:
                yield line(STREAMS, what, "ms between events, p99", lambda row: _p99(row.itl_ms))
            yield line(STREAMS, what, "ms between reads, p99", lambda row: _p99(row.gap_ms))
            if case.delay_ms != MODEL_MS:
                yield line(STREAMS, what, EVENTS, _events_per_token)
        case "dispatch":
            token = case.clock.partition(": ")[2]
            what = f"{case.api}, {case.script.replace('_', ' ')}, from {token}"
            yield line(DISPATCH, what, "ms, p50", lambda row: _p50(row.dispatch_ms))
            yield line(DISPATCH, what, "ms, p99", lambda row: _p99(row.dispatch_ms))


def _memory(
    record: Record, rows: Mapping[str, Mapping[Case, Row]], cases: Sequence[Case]
) -> Iterator[Line]:
    def by_side(scenario: str, figure: Figure) -> dict[str, float | None]:
        values: dict[str, float | None] = {}
        for side, known in rows.items():
            chosen = [row for case, row in known.items() if case.scenario == scenario]
            values[side] = figure(chosen[0]) if chosen else None
        return values

    held = next((case for case in cases if case.scenario == "hold"), None)
    idle, full = by_side("idle", _rss), by_side("hold", _rss)
    if held is not None:
        streams = f"{held.clients:,} open streams"
        yield Line(MEMORY, streams, "MiB resident", full)
        yield Line(MEMORY, streams, "MiB, shared pages once", by_side("hold", _pss))
        each = {
            side: (mib - (idle[side] or 0)) * 1024 / held.clients if mib is not None else None
            for side, mib in full.items()
        }
        yield Line(MEMORY, "a stream", "KiB more than idle", each)
        what = f"{streams}, a token each {held.delay_ms:g} ms"
        worst = by_side("hold", lambda row: row.worst_gap_ms.max if row.worst_gap_ms else None)
        yield Line(MEMORY, what, "ms, longest silence of any", worst)
    yield Line(MEMORY, "nothing to do", "MiB resident", idle)
    yield Line(MEMORY, "nothing to do", "MiB, shared pages once", by_side("idle", _pss))
    yield Line(MEMORY, "nothing to do", "% of a core", by_side("idle", _share_of_a_core))
    starts = {side.name: median(side.start_s) if side.start_s else None for side in record.sides}
    yield Line(MEMORY, "start to first answer", "s", starts)


def disturbance(record: Record) -> str:
    """Describes which cases other work on the machine disturbed."""
    known = record.disturbed
    busy = sum(cores > BUSY_CORES for cores in known)
    return (
        f"other work took more than {BUSY_CORES} cores during {busy} of {len(known)} cases of "
        "more than a second"
    )


def number(value: float | None) -> str:
    """Formats a figure with its significant digits."""
    if value is None:
        return "–"
    if abs(value) < 0.1:
        return f"{value:.3f}"
    if abs(value) < 10:
        return f"{value:.2f}"
    if abs(value) < 100:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def brief(entry: Entry) -> str:
    """One line on a part that is done."""
    failed = sum(row.failed for row in entry.rows)
    outcome = entry.problem or f"{len(entry.rows)} cases in {entry.took_s:.0f} s"
    failures = f", {failed} requests failed" if failed else ""
    return f"  {entry.part:17} {entry.side:14} {outcome}{failures}"


def _p50(spread: Spread | None) -> float | None:
    return spread.p50 if spread else None


def _p99(spread: Spread | None) -> float | None:
    return spread.p99 if spread else None


def _events_per_token(row: Row) -> float | None:
    return row.events / row.tokens if row.tokens else None


def _rss(row: Row) -> float | None:
    return sum(memory.rss for memory in row.memory.values()) or None


def _pss(row: Row) -> float | None:
    return sum(memory.pss for memory in row.memory.values()) or None


def _share_of_a_core(row: Row) -> float | None:
    return 100 * sum(row.cost.processes.values()) / row.wall_s if row.wall_s else None
