"""Sums up the turns of a span of time: rates, cache, first tokens, what was computed again and why,
tools and keys. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from turnwire_tools.inspector.conversation import listed
from turnwire_tools.inspector.difference import computed_again
from turnwire_tools.inspector.turns import InspectedTurn

BARS = 60
"""Parts of the span that are shown."""
SLOWEST = 10
MAX_ROWS = 20
LOST = "lost"
"""The cause of tokens that a worker did not hold any more."""


class Sums(Struct):
    """Counts of some turns."""

    turns: int = 0
    failed: int = 0
    prompt: int = 0
    """Tokens, as the next three."""
    cached: int = 0
    output: int = 0
    again: int = 0
    p50_ms: float | None = None
    """Times to the first token."""
    p95_ms: float | None = None


class Bar(Sums):
    """A part of the span."""

    start: float = 0.0
    """Unix time in seconds."""


class NamedSums(Sums):
    """The turns of a key, client or model."""

    name: str = ""


class Recomputation(Struct):
    """Tokens that one client's turns computed again for one cause."""

    cause: str
    """`Departure.cause` or `LOST`."""
    client: str
    turns: int = 0
    tokens: int = 0
    worst: str = ""
    """The turn with the most of these tokens."""
    worst_tokens: int = 0
    reason: str = ""
    """Its cause in words."""


class ToolUse(Struct):
    """What a tool weighs."""

    name: str
    calls: int = 0
    definition: int = 0
    """Tokens of its definition in a prompt, on average: its share of all definitions by length."""
    prompts: int = 0
    """Prompts with its definition."""
    results: int = 0
    """Results that came."""
    result_tokens: int = 0
    """Tokens of these results, estimated by length."""
    errors: int = 0


class Overview(Struct, kw_only=True):
    """What the start page shows."""

    since: float
    until: float
    """Unix time in seconds."""
    observed: float
    """When the inspector began to see turns, at the earliest `since`."""
    bar_s: float
    recent: int
    """Turns of the last `bar_s`."""
    sessions: int
    total: Sums
    bars: list[Bar]
    again: list[Recomputation]
    slowest: list[str]
    """Turns with the latest first tokens, the latest first."""
    tools: list[ToolUse]
    keys: list[NamedSums]
    clients: list[NamedSums]


def overview(
    turns: Iterable[InspectedTurn], since: float, until: float, observed: float = 0.0
) -> Overview:
    """Sums up the turns with requests between two Unix times. `observed`: from when on all turns
    are known."""
    bar_s = max(60.0, math.ceil((until - since) / BARS / 60) * 60.0)
    first = since // bar_s * bar_s
    in_bars = [turn for turn in turns if first <= turn.time <= until]
    in_span = [turn for turn in in_bars if turn.time >= since]
    timed = [turn for turn in in_span if turn.ttft_ms is not None]
    slowest = sorted(timed, key=lambda turn: turn.ttft_ms or 0.0, reverse=True)
    return Overview(
        since=since,
        until=until,
        observed=min(max(since, observed), until),
        bar_s=bar_s,
        recent=sum(turn.time > until - bar_s for turn in in_span),
        sessions=len({turn.session for turn in in_span}),
        total=_summed(Sums(), in_span),
        bars=_bars(in_bars, first, until, bar_s),
        again=_recomputed(in_span),
        slowest=[turn.id for turn in slowest[:SLOWEST]],
        tools=_tools(in_span),
        keys=_by_name((turn.key, turn) for turn in in_span),
        clients=_by_name((turn.client, turn) for turn in in_span),
    )


def _summed(sums: Sums, turns: Sequence[InspectedTurn]) -> Sums:
    """Adds turns to empty sums."""
    for turn in turns:
        sums.turns += 1
        sums.failed += turn.state == "failed"
        sums.output += turn.output
        sums.again += turn.again
        if turn.cached is not None:
            sums.prompt += turn.prompt
            sums.cached += min(turn.cached, turn.prompt)
    times = sorted(turn.ttft_ms for turn in turns if turn.ttft_ms is not None)
    if times:
        sums.p50_ms = _quantile(times, 0.5)
        sums.p95_ms = _quantile(times, 0.95)
    return sums


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that this share of the values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _bars(turns: Iterable[InspectedTurn], first: float, until: float, bar_s: float) -> list[Bar]:
    """Parts of the span, with empty ones. They begin at whole multiples of their length, so that a
    turn is in the same one whenever the page is drawn."""
    count = 1 + int((until - first) // bar_s)
    bars = [Bar(start=first + at * bar_s) for at in range(count)]
    groups: list[list[InspectedTurn]] = [[] for _ in bars]
    for turn in turns:
        groups[int((turn.time - first) // bar_s)].append(turn)
    for bar, group in zip(bars, groups, strict=True):
        _summed(bar, group)
    return bars


def _by_name(named_turns: Iterable[tuple[str, InspectedTurn]]) -> list[NamedSums]:
    """The sums of each name, most tokens that were computed or written first."""
    groups: defaultdict[str, list[InspectedTurn]] = defaultdict(list)
    for name, turn in named_turns:
        groups[name].append(turn)
    sums = [NamedSums(name=name) for name in groups]
    for row in sums:
        _summed(row, groups[row.name])
    sums.sort(key=lambda row: row.prompt - row.cached + row.output, reverse=True)
    return sums[:MAX_ROWS]


def _recomputed(turns: Iterable[InspectedTurn]) -> list[Recomputation]:
    rows: dict[tuple[str, str], Recomputation] = {}
    for turn in turns:
        if not turn.again or turn.difference is None:
            continue
        changed, lost = computed_again(turn)
        _add_again(rows, turn, turn.difference.cause, changed)
        _add_again(rows, turn, LOST, lost)
    return sorted(rows.values(), key=lambda row: row.tokens, reverse=True)[:MAX_ROWS]


def _add_again(
    rows: dict[tuple[str, str], Recomputation], turn: InspectedTurn, cause: str, tokens: int
) -> None:
    if not tokens:
        return
    row = rows.setdefault((cause, turn.client), Recomputation(cause, turn.client))
    row.turns += 1
    row.tokens += tokens
    if tokens > row.worst_tokens and turn.difference is not None:
        row.worst = turn.id
        row.worst_tokens = tokens
        row.reason = "" if cause == LOST else turn.difference.reason


def _tools(turns: Iterable[InspectedTurn]) -> list[ToolUse]:
    """The tools that were in prompts or called, heaviest first."""
    tools: dict[str, ToolUse] = {}
    for turn in turns:
        for block in turn.blocks:
            if block.kind == "tool_use":
                tools.setdefault(block.name, ToolUse(block.name)).calls += 1
        _weigh(turn, tools)
    for tool in tools.values():
        tool.definition //= max(1, tool.prompts)
    heaviest = sorted(tools.values(), key=_weight, reverse=True)
    return heaviest[:MAX_ROWS]


def _weight(tool: ToolUse) -> int:
    return tool.definition * tool.prompts + tool.result_tokens


def _weigh(turn: InspectedTurn, tools: dict[str, ToolUse]) -> None:
    """Adds the definitions and results of a turn's request."""
    ratio = turn.characters_per_token
    if not ratio:
        return
    definitions = listed(turn.addition.head.tools)
    # The preprocessor knows the tokens of these definitions together, which are for the model in
    # another form than for the client.
    weight = 1 / ratio
    if turn.tools and definitions:
        weight = turn.tools / sum(item.length for item in definitions)
    for item in definitions:
        tool = tools.setdefault(item.name, ToolUse(item.name))
        tool.prompts += 1
        tool.definition += round(item.length * weight)
    for item in turn.addition.items:
        if item.kind == "result":
            tool = tools.setdefault(item.name, ToolUse(item.name))
            tool.results += 1
            tool.errors += item.error
            tool.result_tokens += round(item.length / ratio)
