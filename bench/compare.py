"""Two runs side by side. Pure but for the table."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench.rows import Case, Row, medians
from bench.stats import Spread

Figure: TypeAlias = Callable[[Row], float | None]


class Comparison(Struct, frozen=True):
    """One figure of one case, of us and of a peer."""

    case: Case
    figure: str
    ours: float
    peers: float

    @property
    def ratio(self) -> float | None:
        """How many times ours the peer's is; None where ours is not above 0."""
        return self.peers / self.ours if self.ours > 0 else None


def compare(ours: Sequence[Row], peers: Sequence[Row]) -> Iterator[Comparison]:
    """The figures that both have, of the cases that both ran without a failure; medians over the runs."""
    known = {row.case: row for row in medians(peers)}
    for row in medians(ours):
        peer = known.get(row.case)
        if peer is None or row.failed or peer.failed:
            continue
        for name, figure in _FIGURES[row.case.scenario].items():
            our, other = figure(row), figure(peer)
            if our is not None and other is not None:
                yield Comparison(row.case, name, our, other)


def show(comparisons: Sequence[Comparison], console: Console) -> None:
    """A line for each figure."""
    table = Table(title="ours, peer's, and peer's / ours", title_justify="left")
    for heading in ("case", "figure"):
        table.add_column(heading)
    for heading in ("ours", "peer", "peer / ours"):
        table.add_column(heading, justify="right")
    for one in comparisons:
        ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
        table.add_row(described(one.case), one.figure, f"{one.ours:,.2f}", f"{one.peers:,.2f}", ratio)
    console.print(table)


def described(case: Case) -> str:
    """A case in a few words."""
    parts = [case.scenario, case.prompt, case.script, case.clock]
    if case.scenario in ("stream", "open"):
        load = f"{case.clients} streams" if case.rate_per_s is None else f"{case.rate_per_s:g}/s"
        parts += [load, f"{case.delay_ms:g} ms"]
    return ", ".join(part for part in (*parts, case.mode) if part)


def _of(name: str, which: str) -> Figure:
    def figure(row: Row) -> float | None:
        spread: Spread | None = getattr(row, name)
        return getattr(spread, which) if spread is not None else None

    return figure


def _cpu_per_token(row: Row) -> float | None:
    return sum(row.cpu_us_per_token.values()) or None


def _cpu_per_request(row: Row) -> float | None:
    return sum(row.cpu_ms_per_request.values()) or None


_STREAM: dict[str, Figure] = {
    "tokens/s": lambda row: row.tokens_per_s,
    "CPU us/token": _cpu_per_token,
    "ttft p50 ms": _of("ttft_ms", "p50"),
    "itl p99 ms": _of("itl_ms", "p99"),
    "gap p99 ms": _of("gap_ms", "p99"),
}
_FIGURES: dict[str, dict[str, Figure]] = {
    "ttft": {"ttft p50 ms": _of("ttft_ms", "p50"), "CPU ms/request": _cpu_per_request},
    "stream": _STREAM,
    "open": _STREAM,
    "dispatch": {"lag p50 ms": _of("dispatch_ms", "p50"), "lag max ms": _of("dispatch_ms", "max")},
}
