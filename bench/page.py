"""`python -m bench.page`: writes results into `docs/performance.md`, between its markers, and draws
the plots.

The page has two places: one for capacity, one for all else. Without `--result`, each gets the
newest finished result of `bench/results` with figures for it, one with a peer rather than one
without.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench import record as records
from bench.charts import bars, lines, stacked
from bench.cpu import of_stage
from bench.record import Record
from bench.report import RESULTS
from bench.rows import Case, Row
from bench.sides import BASE
from bench.summary import CAPACITY, DISPATCH, MEMORY, RATE, STREAMS, TTFT, Line, disturbance, number
from bench.summary import lines as lines_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
REST = "rest"
"""Everything but capacity."""
MARKERS = {
    CAPACITY: ("<!-- bench.capacity -->", "<!-- /bench.capacity -->"),
    REST: ("<!-- bench.page -->", "<!-- /bench.page -->"),
}
SUPERVISORS = ("up", "reaper")
CPU_LOADS = ((64, 10.0), (64, 0.0), (256, 0.0))


def generated(record: Record, name: str, place: str) -> str:
    """Returns the text of one place. `name`: the result's file."""
    found = [line for line in lines_of(record) if (line.group == CAPACITY) == (place == CAPACITY)]
    if place == CAPACITY:
        return "\n".join((record_heading(record, name), *_capacity(found, record), ""))
    parts = [record_heading(record, name), _peers(found, record), _contents(record)]
    groups = dict.fromkeys(line.group for line in found)
    for group in groups:
        some = [line for line in found if line.group == group]
        parts.append(f"### {group}\n")
        parts += [
            f"![{group}](performance/{plot}.svg)\n"
            for plot in PLOTS_OF.get(group, ())
            if plot in plots(record)
        ]
        for heading, part in _tables(group, some):
            parts.append("\n".join((*heading, *_table(part, record))) + "\n")
    return "\n".join(part for part in parts if part)


def plots(record: Record) -> dict[str, str]:
    """Returns the plots with figures, as SVG by name."""
    rows = {side.name: record.rows(side.name) for side in record.sides}
    drawn = {
        "ttft": _ttft_plot(record, "keepalive", "a kept connection"),
        "ttft-fresh": _ttft_plot(record, "fresh", "a fresh connection, its set-up included"),
        "dispatch": _dispatch_plot(record),
        "cpu": _cpu_plot(rows),
        "tokens": _over_streams(
            rows, "Output tokens per second, flat out", lambda row: row.tokens_per_s
        ),
    }
    return {name: plot for name, plot in drawn.items() if plot}


PLOTS_OF: dict[str, Sequence[str]] = {
    TTFT: ("ttft", "ttft-fresh"),
    STREAMS: ("cpu", "tokens"),
    DISPATCH: ("dispatch",),
}


def record_heading(record: Record, name: str) -> str:
    machine = record.machine
    sides = "; ".join(side.described for side in record.sides)
    where = f"{machine.cores} cores, {machine.processor}, {machine.system}, Python {machine.python}"
    disturbed = disturbance(record)
    medians = f"Medians of {_repeats(record)}"
    return (
        f"{record.started[:10]}, {where}. {sides}. {medians}; {disturbed}. "
        f"`bench/results/{name}`.\n"
    )


def _repeats(record: Record) -> str:
    """Returns how often each part was measured, which differs if a run was resumed with some of its
    parts."""
    counts = {
        part.split()[0]: len(record.repeats(part))
        for part in dict.fromkeys(e.part for e in record.entries)
    }
    most = max(counts.values(), default=record.repeat)
    fewer = [f"{part}: {count}" for part, count in counts.items() if count < most]
    return f"{most} ({', '.join(fewer)})" if fewer else str(most)


def _peers(found: Sequence[Line], record: Record) -> str:
    """Returns the rows in which the best peer is ahead."""
    ours = record.sides[0].name
    compared = [(line, ratio) for line in found if (ratio := line.best_ratio(ours)) is not None]
    if not compared:
        return ""
    behind = sorted(
        ((ratio, line) for line, ratio in compared if ratio < 1), key=lambda one: one[0]
    )
    text = f"Ahead of the best peer in {len(compared) - len(behind)} of {len(compared)} rows."
    each = [
        f"- behind, {1 / ratio:.2f} times the best peer's: {line.what}, {line.unit}"
        for ratio, line in behind
    ]
    return "\n".join((text, "", *each)) + "\n"


def _contents(record: Record) -> str:
    if not record.checks:
        return ""
    each = ", ".join(
        (
            f"{check.api} {check.streams - len(check.differing)} of {check.streams} "
            f"({check.events:,} "
            "events)"
        )
        for check in record.checks
    )
    return f"Contents at full load equal to those of a slow run, deltas joined: {each}.\n"


def _capacity(found: Sequence[Line], record: Record) -> Iterator[str]:
    """Yields a row for each load, with all its figures; ratios to peers only for the rate."""
    ours, *peers = (side.name for side in record.sides)
    units = list(dict.fromkeys(line.unit for line in found))
    loads: dict[str, dict[str, Line]] = {}
    for line in found:
        loads.setdefault(line.what, {})[line.unit] = line
    headings = [
        f"{unit}: {ours}" if side == ours else side for unit in units for side in (ours, *peers)
    ]
    ratios = [f"× {peer}" for peer in peers]
    yield (
        "| "
        + " | ".join(("", *headings[: 1 + len(peers)], *ratios, *headings[1 + len(peers) :]))
        + " |"
    )
    yield "|---|" + "---:|" * (len(headings) + len(ratios))
    for what, lines_by_unit in loads.items():
        cells = [what]
        for unit in units:
            line = lines_by_unit[unit]
            cells += [
                f"**{number(line.values.get(ours))}**",
                *(number(line.values.get(peer)) for peer in peers),
            ]
            if unit == RATE:
                known = [line.ratio(ours, peer) for peer in peers]
                cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in known]
        yield "| " + " | ".join(cells) + " |"


def _tables(group: str, some: Sequence[Line]) -> Iterator[tuple[Sequence[str], Sequence[Line]]]:
    """Yields a table for each unit, unless each row has its own unit."""
    if group == MEMORY:
        yield (), some
        return
    units = list(dict.fromkeys(line.unit for line in some))
    for unit in units:
        yield (
            ((f"{unit}:", "") if len(units) > 1 else ()),
            [line for line in some if line.unit == unit],
        )


def _table(some: Sequence[Line], record: Record) -> Iterator[str]:
    shown = [
        side.name
        for side in record.sides
        if any(line.values.get(side.name) is not None for line in some)
    ]
    ours, peers = shown[0], shown[1:]
    with_unit = len({line.unit for line in some}) > 1
    headings = [
        "",
        *([""] if with_unit else []),
        ours,
        *(word for peer in peers for word in (peer, "×")),
    ]
    yield "| " + " | ".join(headings) + " |"
    yield "|---|" + "---|" * with_unit + "---:|" * (len(headings) - 1 - with_unit)
    for line in some:
        cells = [
            line.what,
            *([line.unit] if with_unit else []),
            f"**{number(line.values.get(ours))}**",
        ]
        for peer in peers:
            ratio = line.ratio(ours, peer)
            cells += [number(line.values.get(peer)), "" if ratio is None else f"{ratio:.1f}"]
        yield "| " + " | ".join(cells) + " |"


def _ttft_plot(record: Record, mode: str, on: str) -> str:
    chosen = [
        line
        for line in lines_of(record)
        if line.group == TTFT and line.case and line.case.mode == mode
    ]
    groups = [(line.what.removesuffix(f", {mode}"), _known(line)) for line in chosen]
    return bars(f"Time to first token on {on}, ms", groups, log=True) if groups else ""


def _dispatch_plot(record: Record) -> str:
    chosen = [
        line
        for line in lines_of(record)
        if line.group == DISPATCH
        and line.case
        and line.case.clock.endswith("body")
        and "p50" in line.unit
    ]
    groups = [(line.what.removesuffix(", from body"), _known(line)) for line in chosen]
    return (
        bars(
            "A complete call on its way to the client while the model goes on, ms", groups, log=True
        )
        if groups
        else ""
    )


def _known(line: Line) -> list[tuple[str, float]]:
    return [(name, value) for name, value in line.values.items() if value is not None and value > 0]


def _cpu_plot(rows: dict[str, list[Row]]) -> str:
    stages = []
    for clients, delay in CPU_LOADS:
        for side, known in rows.items():
            row = next((row for row in known if _is_stream(row.case, clients, delay)), None)
            if row is None or row.failed:
                continue
            each: dict[str, float] = {}
            for name, cost in row.cpu_us_per_token.items():
                stage = "supervisor" if name in SUPERVISORS else of_stage(name)
                each[stage] = each.get(stage, 0.0) + cost
            pace = "flat out" if not delay else f"{delay:g} ms a token"
            stages.append((f"{side}, {clients} streams, {pace}", list(each.items())))
    return stacked("CPU per output token by process, µs", stages) if stages else ""


def _is_stream(case: Case, clients: int, delay_ms: float) -> bool:
    known = (case.scenario, case.api, case.clients, case.delay_ms)
    return known == ("stream", "messages", clients, delay_ms)


def _over_streams(rows: dict[str, list[Row]], title: str, figure: Callable[[Row], float]) -> str:
    series = {
        side: [
            (float(row.case.clients), figure(row))
            for row in known
            if row.case.scenario == "stream"
            and row.case.api == "messages"
            and not row.case.delay_ms
            and not row.failed
        ]
        for side, known in rows.items()
    }
    return _lines(title, "streams", "", series)


def _lines(
    title: str,
    x_label: str,
    unit: str,
    series: dict[str, list[tuple[float, float]]],
    *,
    log: bool = True,
) -> str:
    there = {name: line for name, line in series.items() if line}
    return lines(title, x_label, unit, there, log=log) if there else ""


def newest(folder: Path, place: str) -> Path:
    """Returns the newest result for a place. Raises FileNotFoundError."""
    for kind in ("peer", "alone"):
        for path in sorted(folder.glob(f"*-{kind}*.json"), reverse=True):
            if place in places(records.load(path)):
                return path
    raise FileNotFoundError(f"no finished result of bench.suite for {place} in {folder}")


def places(record: Record) -> list[str]:
    """Returns the places for which a finished result has figures: only capacity, if it has single
    parts."""
    if not record.finished or "quick" in record.label:
        return []
    has_capacity = any(entry.part.startswith("capacity") for entry in record.entries)
    return [CAPACITY] * has_capacity + [REST] * (record.label in ("peer", "alone"))


def write(path: Path, place: str, page: Path = PAGE, folder: Path = PLOTS) -> None:
    """Updates one place of the page and its plots. Raises OSError, or ValueError if the page has no
    markers."""
    record = records.load(path)
    record.sides = [
        side for side in record.sides if side.name != BASE
    ]  # only of interest during a change
    begin, end = MARKERS[place]
    before, begun, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"{page} has no {begin} … {end}")
    if place == REST:
        folder.mkdir(parents=True, exist_ok=True)
        for name, plot in plots(record).items():
            (folder / f"{name}.svg").write_text(plot, encoding="utf-8")
    page.write_text(
        f"{before}{begin}\n\n{generated(record, path.name, place)}\n{end}{after}", encoding="utf-8"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.page", description="A result into docs/performance.md."
    )
    parser.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help="default: the newest finished one for each place",
    )
    asked = parser.parse_args(argv)
    try:
        for place in places(records.load(asked.result)) if asked.result else MARKERS:
            write(asked.result or newest(RESULTS, place), place)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        print(f"bench.page: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
