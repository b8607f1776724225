"""Computes the result of a run: a row for each measured case. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bench.apis import Api
from bench.client import Mode
from bench.cpu import Cost, Memory
from bench.exchange import Exchange

_COUNTS = ("requests", "tokens", "events")
_RATES = ("wall_s", "tokens_per_s")
_SPREADS = ("ttft_ms", "itl_ms", "gap_ms", "worst_gap_ms", "send_lag_ms", "dispatch_ms")


class Spread(Struct, frozen=True):
    """The distribution of a set of figures."""

    count: int
    min: float
    p50: float
    p95: float
    p99: float
    max: float


class Case(Struct, frozen=True):
    """What was measured. Equal cases of several runs are compared and averaged."""

    scenario: str
    api: str
    mode: Mode
    prompt: str = ""
    clients: int = 1
    delay_ms: float | None = None
    tokens: int | None = None
    script: str = ""
    clock: str = ""
    """The source of the time at which a call was complete in the worker, and the token that
    completes it."""


class Row(Struct, frozen=True):
    """The figures of a case. Times in ms; tokens as the server counted them, otherwise events with
    output."""

    case: Case
    requests: int
    failed: int
    errors: dict[str, int]
    wall_s: float
    tokens: int
    events: int
    """Events with output: fewer than tokens where a server merges."""
    prompt_tokens: int | None
    """Tokens of the largest prompt."""
    tokens_per_s: float
    ttft_ms: Spread | None
    itl_ms: Spread | None
    """Between one event with output and the next; 0 where several came in one read."""
    gap_ms: Spread | None
    """Between one read with output and the next."""
    worst_gap_ms: Spread | None
    """The longest time without output of each stream. The spread shows whether a stream starved."""
    send_lag_ms: Spread | None
    """How late the client sent requests. Shows a client at its limit."""
    cost: Cost
    memory: dict[str, Memory]
    dispatch_ms: Spread | None = None
    """From the token of `case.clock` leaving the worker to the event that completes the call for
    the client. Negative where a call is complete for the server before that token."""
    dispatch_missing: int = 0
    """Calls that did not arrive, or for which the worker has no time."""

    @property
    def requests_per_s(self) -> float | None:
        """Requests that were answered well, per second."""
        return (self.requests - self.failed) / self.wall_s if self.wall_s else None

    @property
    def cpu_us_per_token(self) -> float | None:
        """CPU microseconds per output token, of all processes."""
        return sum(self.cost.processes.values()) * 1e6 / self.tokens if self.tokens else None

    @property
    def cpu_ms_per_request(self) -> float | None:
        """CPU milliseconds per request, of all processes."""
        return sum(self.cost.processes.values()) * 1e3 / self.requests if self.requests else None

    @property
    def disturbed(self) -> float:
        """How many cores others kept busy meanwhile."""
        return self.cost.others / self.wall_s if self.wall_s else 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """The figure at `share` (0 to 1) of an ordered sequence that is not empty: nearest rank, never
    one in between."""
    return ordered[min(len(ordered) - 1, int((len(ordered) - 1) * share + 0.5))]


def spread(figures: Iterable[float | None]) -> Spread | None:
    """Returns the spread of the figures that are not None; None if there are none."""
    ordered = sorted(figure for figure in figures if figure is not None)
    if not ordered:
        return None
    cut = [round(quantile(ordered, share), 4) for share in (0, 0.5, 0.95, 0.99, 1)]
    return Spread(len(ordered), *cut)


def make_row(
    case: Case,
    api: Api,
    exchanges: Sequence[Exchange],
    cost: Cost,
    memory: dict[str, Memory],
    *,
    sequence: bool = False,
) -> Row:
    """Makes the row of some exchanges. `sequence`: they followed each other, and the first one is
    left out of the times to the first token."""
    good = [one for one in exchanges if one.finished]
    later = good[1:] if sequence and len(good) > 1 else good
    counted = [one.tokens(api) for one in good]
    tokens = sum(
        count.output if count else one.outputs for one, count in zip(good, counted, strict=True)
    )
    start = min((one.due for one in exchanges), default=0)
    wall_s = (max((one.ended for one in exchanges), default=start) - start) / 1e9
    errors = Counter(one.error or "unknown" for one in exchanges if not one.finished)
    return Row(
        case=case,
        requests=len(exchanges),
        failed=len(exchanges) - len(good),
        errors=dict(errors.most_common(5)),
        wall_s=round(wall_s, 4),
        tokens=tokens,
        events=sum(one.outputs for one in good),
        prompt_tokens=max((count.prompt for count in counted if count), default=None),
        tokens_per_s=round(tokens / wall_s, 1) if wall_s else 0.0,
        ttft_ms=spread(one.ttft_ms for one in later),
        itl_ms=spread(gap for one in good for gap in one.event_gaps_ms()),
        gap_ms=spread(gap for one in good for gap in one.gaps_ms()),
        worst_gap_ms=spread(max(one.gaps_ms(), default=None) for one in good),
        send_lag_ms=spread(one.send_lag_ms for one in exchanges if one.sent),
        cost=cost,
        memory=memory,
    )


def medians(rows: Sequence[Row]) -> list[Row]:
    """One row for each case: the medians over its runs, the sums of what failed."""
    cases: dict[Case, list[Row]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row)
    return [_median_row(some) if len(some) > 1 else some[0] for some in cases.values()]


def _median_row(rows: Sequence[Row]) -> Row:
    errors: Counter[str] = Counter()
    for row in rows:
        errors.update(row.errors)
    figures: dict[str, Any] = {}
    for name in _COUNTS:
        figures[name] = int(median(getattr(row, name) for row in rows))
    for name in _RATES:
        figures[name] = median(getattr(row, name) for row in rows)
    for name in _SPREADS:
        figures[name] = _median_spread([getattr(row, name) for row in rows])
    costs = [row.cost for row in rows]
    processes = {
        name: median(cost.processes.get(name, 0.0) for cost in costs) for name in costs[0].processes
    }
    others = median(cost.others for cost in costs)
    return replace(
        rows[-1],
        failed=sum(row.failed for row in rows),
        errors=dict(errors),
        cost=Cost(processes, median(cost.client for cost in costs), others),
        dispatch_missing=sum(row.dispatch_missing for row in rows),
        **figures,
    )


def _median_spread(spreads: Sequence[Spread | None]) -> Spread | None:
    """The medians over several runs; `count` is the sum."""
    known = [one for one in spreads if one is not None]
    if not known:
        return None
    names = ("min", "p50", "p95", "p99", "max")
    cut = [median(getattr(one, name) for one in known) for name in names]
    return Spread(sum(one.count for one in known), *cut)
