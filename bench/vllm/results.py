"""Makes tables of the result of a run. Pure."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct, field

from bench.prefixes import RATIOS, Figures, ratios
from bench.report import Machine
from bench.vllm.measuring import DispatchRow, StreamRow, TurnRow

OURS, THEIRS = "turnwire", "vllm serve"
_PER_TURN = ("computed", "ttft_ms", "tokens_per_s")
_PER_STREAM = ("tokens_per_s", "engine_us", "serving_us")
APIS = {"messages": "Messages", "chat": "Chat"}


class Result(Struct):
    """One run."""

    started: str
    machine: Machine
    versions: dict[str, str]
    turns: list[TurnRow] = field(default_factory=list)
    streams: list[StreamRow] = field(default_factory=list)
    dispatch: list[DispatchRow] = field(default_factory=list)
    prefixes: list[Figures] = field(default_factory=list)
    load_after: float = 0.0
    """One-minute load average at the end: shows other work on the machine."""


def tables(result: Result) -> str:
    """All of it, as Markdown."""
    parts = [
        _about(result),
        _prefixes(result.prefixes) if result.prefixes else "",
        _turns(result.turns) if result.turns else "",
        _streams(result.streams) if result.streams else "",
        _dispatch(result.dispatch) if result.dispatch else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _about(result: Result) -> str:
    machine = result.machine
    versions = "; ".join(f"{name} {number}" for name, number in result.versions.items())
    return (
        f"{result.started[:10]}, {machine.cores} cores, {machine.processor}, {machine.system}, "
        f"Python {machine.python}. {versions}. Other work shared the machine (load average "
        f"{machine.load_before:g} at the start, {result.load_after:g} at the end): the sides took "
        "turns, and only the ratios count."
    )


def _prefixes(figures: Sequence[Figures]) -> str:
    found = ratios(figures)
    rows = []
    for stack in dict.fromkeys(figure.stack for figure in figures):
        by_name = {figure.variant: figure for figure in figures if figure.stack == stack}
        times = [
            f"{figure.ttft_ms:,.0f} ms ({figure.prompt_tokens - figure.cached_tokens:,})"
            for figure in by_name.values()
        ]
        own = [f"**{found[f'{name}, {stack}']:g}**" for name in RATIOS]
        rows.append((stack, *times[:2], own[0], *times[2:], own[1]))
    size = figures[0].prompt_tokens
    head = ("billing line", "stable", "varying", "ratio", "thinking kept", "mutated", "ratio")
    return (
        f"### A prompt of {size:,} tokens, asked again with a new tail\n\n"
        "Median time to the first token, and in brackets how many tokens of the prompt were "
        "computed.\n\n" + _table(head, rows)
    )


def _turns(turns: Sequence[TurnRow]) -> str:
    rows = []
    for style, api in dict.fromkeys((row.style, row.api) for row in turns):
        for side in (THEIRS, OURS):
            own = [row for row in turns if (row.side, row.api, row.style) == (side, api, style)]
            later = [row for row in own if row.turn > 1]
            longest = f"{max(row.prompt for row in later):,}"
            medians = (median(getattr(row, name) for row in later) for name in _PER_TURN)
            figures = (f"{figure:,.0f}" for figure in medians)
            rows.append((f"{APIS[api]}, {style} arguments", side, longest, *figures))
        ratios = (f"**{ratio:.2f}**" for ratio in _session_ratios(turns, style, api))
        rows.append(("", "ratio", "", *ratios))
    new, rest = zip(*_new(turns), strict=True)
    head = ("session", "server", "longest prompt", "computed", "first token, ms", "tokens/s")
    return (
        "### A session of 20 turns\n\n"
        "Medians over turns 2 to 20. Computed: tokens of the prompt that were not in the cache. "
        "With Turnwire that is, in each turn, what is new (the tool result and what the template "
        f"writes around it: {median(new):,.0f} at the median) and what was in the cache's last "
        f"block, at most {max(rest)} tokens. Ratios: Turnwire ÷ vllm serve, turn by turn, "
        "median.\n\n" + _table(head, rows)
    )


def _session_ratios(turns: Sequence[TurnRow], style: str, api: str) -> Iterable[float]:
    by_turn = {(row.side, row.turn): row for row in turns if (row.style, row.api) == (style, api)}
    numbers = sorted({turn for _, turn in by_turn if turn > 1})
    for name in _PER_TURN:
        yield median(
            getattr(by_turn[OURS, at], name) / getattr(by_turn[THEIRS, at], name) for at in numbers
        )


def _new(turns: Sequence[TurnRow]) -> Iterable[tuple[int, int]]:
    """Yields for each turn with Turnwire the tokens that no earlier prompt or output had, and how
    many others were computed."""
    for before, after in pairwise(row for row in turns if row.side == OURS):
        if after.turn > 1:
            new = after.prompt - before.prompt - before.output
            yield new, after.prompt - after.cached - new


def _streams(streams: Sequence[StreamRow]) -> str:
    rows = []
    for model, api in dict.fromkeys((row.model, row.api) for row in streams):
        theirs, ours = (
            [row for row in streams if (row.model, row.api, row.side) == (model, api, side)]
            for side in (THEIRS, OURS)
        )
        for side, mine in ((THEIRS, theirs), (OURS, ours)):
            figures = (median(getattr(row, name) for row in mine) for name in _PER_STREAM)
            rows.append((f"{APIS[api]}, {model}", side, *(f"{figure:,.0f}" for figure in figures)))
        cells = ["", "ratio"]
        for name in _PER_STREAM:
            rounds = zip(ours, theirs, strict=True)
            own = [getattr(one, name) / getattr(other, name) for one, other in rounds]
            cells.append(f"**{median(own):.2f}** ({min(own):.2f} to {max(own):.2f})")
        rows.append(tuple(cells))
    head = ("", "server", "tokens/s", "µs of CPU per token, model", "all else")
    return (
        f"### {streams[0].streams} streams at once\n\n"
        "Ratios: Turnwire ÷ vllm serve, round by round: median and range. The model and the "
        "server share the cores: what one takes, the other lacks.\n\n" + _table(head, rows)
    )


def _dispatch(rows: Sequence[DispatchRow]) -> str:
    lines = []
    for api in dict.fromkeys(row.api for row in rows):
        lags = [
            median(row.ms for row in rows if (row.api, row.side) == (api, side))
            for side in (THEIRS, OURS)
        ]
        lines.append((APIS[api], *(f"{lag:,.1f}" for lag in lags)))
    return (
        "### From the last token of a call to the client, while the model goes on, ms\n\n"
        "Messages: to `content_block_stop`. Chat, which has no such event: to the last piece of "
        "the arguments. Below zero: it came with `</function>`, some tokens before the call's "
        "closer.\n\n" + _table(("", THEIRS, OURS), lines)
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))
