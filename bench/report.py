"""Writes a run as JSON, and shows it as tables."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.cpu import of_stage
from bench.rows import Row, medians
from bench.stats import Spread

RESULTS = Path(__file__).parent / "results"
BUSY_CORES = 0.1
"""With more cores used by other work, a case is marked as disturbed."""


class Machine(msgspec.Struct, frozen=True):
    """The machine of a measurement."""

    cores: int
    processor: str
    system: str
    python: str
    load_before: float
    """One-minute load average at the start: shows other work on the machine."""


class Run(msgspec.Struct, frozen=True):
    """One run of the load generator."""

    started: str
    label: str
    url: str
    model: str
    machine: Machine
    rows: list[Row]
    start_s: float | None = None
    """Seconds from the command to the first request that can be served, of a stack of our own."""


def this_machine() -> Machine:
    """The facts of the machine on which this runs."""
    found = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=found[0] if found else platform.machine(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        load_before=round(os.getloadavg()[0], 2),
    )


def now() -> str:
    """Returns the time in the form of results."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def save(run: Run, path: Path | None = None) -> Path:
    """Writes the run to `path`, or to a file of its own in `bench/results`."""
    if path is None:
        name = run.started.replace(":", "").replace("-", "")
        path = RESULTS / f"{name}{f'-{run.label}' if run.label else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    return path


def load(path: Path) -> Run:
    """Reads what `save` has written. Raises msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def show(run: Run, console: Console) -> None:
    """Shows a table for each scenario: medians, if a case was run several times."""
    rows = medians(run.rows)
    machine = run.machine
    console.print(
        f"{run.started}  {run.url}  {run.model}{f'  {run.label}' if run.label else ''}\n"
        f"{machine.cores} cores, {machine.processor}, {machine.system}, Python {machine.python}, "
        f"load {machine.load_before} before"
        + (f"; the stack was up after {run.start_s:.1f} s" if run.start_s is not None else "")
    )
    for scenario, make in (
        ("ttft", _ttft),
        ("stream", _stream),
        ("open", _stream),
        ("dispatch", _dispatch),
    ):
        chosen = [row for row in rows if row.case.scenario == scenario]
        if chosen:
            console.print(make(chosen))
    _say_what_failed(rows, console)
    _say_memory(rows, console)


def _ttft(rows: Sequence[Row]) -> Table:
    stages = _stages(rows)
    table = Table(
        title="time to first token, ms; CPU ms per request by process", title_justify="left"
    )
    headings = (
        "prompt",
        "connection",
        "tokens",
        "first",
        "min",
        "p50",
        "p95",
        "first byte p50",
        "CPU",
    )
    _columns(table, (*headings, *stages, "others"))
    for row in rows:
        table.add_row(
            row.case.prompt,
            row.case.mode,
            str(row.prompt_tokens or "-"),
            _figure(row.first_ttft_ms),
            _of(row.ttft_ms, "min"),
            _of(row.ttft_ms, "p50"),
            _of(row.ttft_ms, "p95"),
            _of(row.first_byte_ms, "p50"),
            *_by_stage(row.cpu_ms_per_request, stages),
            _others(row),
        )
    return table


def _stream(rows: Sequence[Row]) -> Table:
    stages, open_loop = _stages(rows), rows[0].case.scenario == "open"
    what = "open loop" if open_loop else "streams"
    table = Table(title=f"{what}; times in ms, CPU us per token by process", title_justify="left")
    headings = (
        *("per s" if open_loop else "streams", "delay", "tokens/s", "events/token"),
        *("ttft p50", "p99", "itl p50", "p99", "gap p99", "CPU"),
    )
    _columns(table, (*headings, *stages, "client", "others"), left=0)
    for row in rows:
        case = row.case
        table.add_row(
            f"{case.rate_per_s:g}" if open_loop else str(case.clients),
            f"{case.delay_ms:g}",
            f"{row.tokens_per_s:,.0f}",
            _figure(row.events / row.tokens if row.tokens else None),
            _of(row.ttft_ms, "p50"),
            _of(row.ttft_ms, "p99"),
            _of(row.itl_ms, "p50"),
            _of(row.itl_ms, "p99"),
            _of(row.gap_ms, "p99"),
            *_by_stage(row.cpu_us_per_token, stages),
            _figure(row.cost.client * 1e6 / row.tokens if row.tokens else None, 1),
            _others(row),
        )
    return table


def _dispatch(rows: Sequence[Row]) -> Table:
    table = Table(
        title="tool call: token leaves the worker, client can start the tool; ms",
        title_justify="left",
    )
    headings = (
        "script",
        "clock: token",
        "delay",
        "n",
        "missing",
        "min",
        "p50",
        "p95",
        "max",
        "end of turn p50",
        "others",
    )
    _columns(table, headings)
    for row in rows:
        table.add_row(
            row.case.script,
            row.case.clock,
            f"{row.case.delay_ms:g}",
            str(row.dispatch_ms.count if row.dispatch_ms else 0),
            str(row.dispatch_missing),
            _of(row.dispatch_ms, "min"),
            _of(row.dispatch_ms, "p50"),
            _of(row.dispatch_ms, "p95"),
            _of(row.dispatch_ms, "max"),
            _of(row.turn_end_ms, "p50"),
            _others(row),
        )
    return table


def _say_what_failed(rows: Sequence[Row], console: Console) -> None:
    for row in rows:
        for error, count in row.errors.items():
            case = row.case
            what = " ".join(
                str(part)
                for part in (case.scenario, case.prompt or case.script, case.clients)
                if part
            )
            console.print(
                f"[red]{count} failed[/red] {what}: {error}", markup=True, highlight=False
            )


def _say_memory(rows: Sequence[Row], console: Console) -> None:
    memory = rows[-1].memory if rows else {}
    if memory:
        each = ", ".join(
            f"{name} {held.rss:.0f} (peak {held.peak:.0f})" for name, held in memory.items()
        )
        console.print(
            f"resident MiB: {each}; together {sum(held.rss for held in memory.values()):.0f}"
        )


def _columns(table: Table, headings: Sequence[str], left: int = 2) -> None:
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right")


def _stages(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(of_stage(name) for row in rows for name in row.cost.processes))


def _by_stage(figures: dict[str, float], stages: Sequence[str]) -> list[str]:
    """The sum, then each stage's part."""
    if not figures:
        return ["-"] * (len(stages) + 1)
    parts = [
        sum(figure for name, figure in figures.items() if of_stage(name) == stage)
        for stage in stages
    ]
    return [f"{part:.1f}" for part in (sum(parts), *parts)]


def _others(row: Row) -> str:
    mark = "[yellow]" if row.disturbed > BUSY_CORES else ""
    return f"{mark}{row.disturbed:.2f}"


def _of(figures: Spread | None, name: str) -> str:
    return _figure(getattr(figures, name) if figures else None)


def _figure(figure: float | None, digits: int = 2) -> str:
    return "-" if figure is None else f"{figure:.{digits}f}"
