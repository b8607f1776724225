"""Computes the result of a run: a row for each measured case. Pure."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from bench.apis import Api
from bench.client import Mode
from bench.cpu import Cost, Memory
from bench.exchange import Exchange
from bench.stats import Spread, middle, spread


class Case(Struct, frozen=True):
    """What was measured. Equal cases of several runs are compared and averaged."""

    scenario: str
    api: str
    mode: Mode
    prompt: str = ""
    clients: int = 1
    delay_ms: float | None = None
    tokens: int | None = None
    rate_per_s: float | None = None
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
    bytes_per_token: float
    first_ttft_ms: float | None
    """Time of the first request of a sequence. The spreads leave it out."""
    ttft_ms: Spread | None
    first_byte_ms: Spread | None
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
    turn_end_ms: Spread | None = None
    """Time from the call's last token to the end of the turn."""
    runs: int = 1

    @property
    def requests_per_s(self) -> float | None:
        """Requests that were answered well, per second."""
        return (self.requests - self.failed) / self.wall_s if self.wall_s else None

    @property
    def cpu_us_per_token(self) -> dict[str, float]:
        """CPU microseconds per output token, by process."""
        return {
            name: seconds * 1e6 / self.tokens
            for name, seconds in self.cost.processes.items()
            if self.tokens
        }

    @property
    def cpu_ms_per_request(self) -> dict[str, float]:
        """CPU milliseconds per request, by process."""
        return {
            name: seconds * 1e3 / self.requests
            for name, seconds in self.cost.processes.items()
            if self.requests
        }

    @property
    def disturbed(self) -> float:
        """How many cores others kept busy meanwhile."""
        return self.cost.others / self.wall_s if self.wall_s else 0.0


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
    shown separately."""
    good = [one for one in exchanges if one.finished]
    spoken = [one for one in good[1:] if sequence] or good
    counted = [one.tokens(api) for one in good]
    tokens = sum(
        count.output if count else one.outputs for one, count in zip(good, counted, strict=True)
    )
    start = min((one.due for one in exchanges), default=0)
    wall_s = (max((one.ended for one in exchanges), default=start) - start) / 1e9
    return Row(
        case=case,
        requests=len(exchanges),
        failed=len(exchanges) - len(good),
        errors=dict(
            Counter(one.error or "unknown" for one in exchanges if not one.finished).most_common(5)
        ),
        wall_s=round(wall_s, 4),
        tokens=tokens,
        events=sum(one.outputs for one in good),
        prompt_tokens=max((count.prompt for count in counted if count), default=None),
        tokens_per_s=round(tokens / wall_s, 1) if wall_s else 0.0,
        bytes_per_token=round(sum(one.size for one in good) / tokens, 1) if tokens else 0.0,
        first_ttft_ms=good[0].ttft_ms if good else None,
        ttft_ms=spread(one.ttft_ms for one in spoken),
        first_byte_ms=spread(one.first_byte_ms for one in spoken),
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
    return [_median(some) if len(some) > 1 else some[0] for some in cases.values()]


def _median(rows: Sequence[Row]) -> Row:
    def of(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    errors: Counter[str] = Counter()
    for row in rows:
        errors.update(row.errors)
    names = rows[0].cost.processes
    last = rows[-1]
    return Row(
        case=last.case,
        requests=int(median(row.requests for row in rows)),
        failed=sum(row.failed for row in rows),
        errors=dict(errors),
        wall_s=median(row.wall_s for row in rows),
        tokens=int(median(row.tokens for row in rows)),
        events=int(median(row.events for row in rows)),
        prompt_tokens=last.prompt_tokens,
        tokens_per_s=median(row.tokens_per_s for row in rows),
        bytes_per_token=median(row.bytes_per_token for row in rows),
        first_ttft_ms=of([row.first_ttft_ms for row in rows]),
        ttft_ms=middle([row.ttft_ms for row in rows]),
        first_byte_ms=middle([row.first_byte_ms for row in rows]),
        itl_ms=middle([row.itl_ms for row in rows]),
        gap_ms=middle([row.gap_ms for row in rows]),
        worst_gap_ms=middle([row.worst_gap_ms for row in rows]),
        send_lag_ms=middle([row.send_lag_ms for row in rows]),
        cost=Cost(
            {name: median(row.cost.processes.get(name, 0.0) for row in rows) for name in names},
            median(row.cost.client for row in rows),
            median(row.cost.others for row in rows),
        ),
        memory=last.memory,
        dispatch_ms=middle([row.dispatch_ms for row in rows]),
        dispatch_missing=sum(row.dispatch_missing for row in rows),
        turn_end_ms=middle([row.turn_end_ms for row in rows]),
        runs=len(rows),
    )
