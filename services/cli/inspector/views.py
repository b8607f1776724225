"""Makes what the page shows: rows of the list, one turn, one session. Pure."""

import itertools
from collections.abc import Iterable, Sequence

from msgspec import Struct

from services.cli.inspector.fold import Fold
from services.cli.inspector.turns import Difference, InspectedTurn, Mark, State

MAX_SEGMENTS = 600
MIN_LOST = 128
"""Fewer tokens are the rest of a KV block."""


class Row(Struct, frozen=True):
    """A turn in the list. Times: Unix time in seconds, or milliseconds."""

    id: str
    session: str
    number: int
    time: float
    model: str
    client: str
    state: State
    prompt: int
    cached: int | None
    output: int
    ttft_ms: float | None
    ms: float | None
    calls: int
    trouble: bool
    """Something was done again."""
    again: int
    """Prompt tokens that were computed again, though a previous turn had them."""


class Segment(Struct, frozen=True):
    """A stretch of a prompt."""

    start: int
    end: int
    cached: bool | None
    """Whether the worker had it in its KV cache."""
    source: str
    """`ledger`: its ids are those of an earlier prompt or answer; `encoded`: of text that was encoded; "": unknown."""
    answer: int | None = None
    """It is the answer of the session's turn of this number, in its original tokens."""


class BlockView(Struct, frozen=True):
    """A block of the answer. Times in milliseconds after the request."""

    kind: str
    name: str
    call_id: str
    text: str
    length: int
    complete: bool
    start_ms: float
    end_ms: float | None


class Delivery(Struct, frozen=True):
    """When a client could have run a call, in milliseconds after the request, by how the server delivers it."""

    name: str
    call_id: str
    buffered_ms: float | None
    """With the whole answer, at its end."""
    streamed_ms: float | None
    """As pieces without an end: when the next block begins, or the answer ends."""
    dispatched_ms: float | None
    """At its own end, as Turnwire delivers it."""


class Cost(Struct, frozen=True):
    """What a turn computed that a previous turn had computed."""

    changed: int
    """Tokens computed again because of the difference to the previous prompt and answer."""
    changed_ms: float | None
    lost: int
    """Tokens of the common beginning that the worker did not hold."""
    lost_ms: float | None
    lost_reason: str
    ms_per_token: float | None
    """Of this deployment's prefill, as observed."""
    turns: int
    """Turns from which that was estimated."""


class TurnView(Struct, frozen=True):
    """One turn in full."""

    row: Row
    worker: str
    parser: str
    attempt: int
    finish: str
    incomplete: bool
    reused: int | None
    recall: str
    max_tokens: int
    reasoning: int
    marks: list[Mark]
    segments: list[Segment]
    blocks: list[BlockView]
    deliveries: list[Delivery]
    difference: Difference | None
    previous: Row | None
    cost: Cost | None
    tokens: bool
    """Whether the output's tokens are known."""


class SessionView(Struct, frozen=True):
    """The turns of a session, oldest first."""

    id: str
    turns: list[Row]
    reasons: dict[str, str]
    """Why turns departed from the one before."""


def row_of(turn: InspectedTurn) -> Row:
    """A turn's row."""
    changed, lost = _again(turn)
    return Row(
        turn.id,
        turn.session,
        turn.number,
        turn.received,
        turn.model,
        turn.client,
        turn.state,
        turn.prompt_tokens,
        turn.cached,
        turn.output_tokens,
        _ms(turn, turn.first),
        _ms(turn, turn.ended),
        turn.calls,
        any(mark.trouble for mark in turn.marks),
        changed + lost,
    )


def rows_of(fold: Fold, names: Iterable[str]) -> list[Row]:
    """The rows of the turns that are kept."""
    return [row_of(fold.turns[name]) for name in names if name in fold.turns]


def turn_view(fold: Fold, turn: InspectedTurn) -> TurnView:
    """All of a turn."""
    previous = fold.turns.get(turn.previous)
    return TurnView(
        row_of(turn),
        turn.worker,
        turn.parser,
        turn.attempt,
        turn.finish,
        turn.incomplete,
        turn.reused,
        turn.recall,
        turn.max_tokens,
        turn.reasoning_tokens,
        turn.marks,
        segments_of(turn, fold.ancestors(turn)),
        [
            BlockView(
                block.kind,
                block.name,
                block.call_id,
                block.text,
                block.length,
                block.complete,
                _ms(turn, block.started) or 0.0,
                _ms(turn, block.stopped),
            )
            for block in turn.blocks
        ],
        deliveries_of(turn),
        turn.difference,
        None if previous is None else row_of(previous),
        _cost(fold, turn, previous),
        bool(turn.output),
    )


def session_view(fold: Fold, name: str) -> SessionView | None:
    """A session by its own id or that of a turn in it; None where there is none."""
    turn = fold.turns.get(name)
    session = name if name in fold.sessions else turn.session if turn is not None else ""
    names = fold.sessions.get(session)
    if names is None:
        return None
    departed = ((one, fold.turns[one].difference) for one in names)
    reasons = {one: found.reason for one, found in departed if found is not None and found.cause != "none"}
    return SessionView(session, rows_of(fold, names), reasons)


def search(fold: Fold, wanted: str, limit: int = 50) -> list[Row]:
    """The newest turns whose id, or an id made of it, is wanted: `req_…`, `msg_…`, or four characters of it or more."""
    wanted = wanted.strip().rpartition("_")[2]
    if len(wanted) < 4:
        return []
    found = (turn for turn in reversed(fold.turns.values()) if wanted in turn.id or turn.id in wanted)
    return [row_of(turn) for turn, _ in zip(found, range(limit), strict=False)]


def segments_of(turn: InspectedTurn, ancestors: Iterable[InspectedTurn]) -> list[Segment]:
    """The prompt in stretches of one kind, from its start to its end."""
    total = turn.prompt_tokens
    answers = [one for one in _answers_kept(turn, ancestors) if one[1] <= total][:MAX_SEGMENTS]
    cached, reused = turn.cached, turn.reused
    bounds = {0, total, *(at for start, end, _ in answers for at in (start, end))}
    bounds |= {at for at in (cached, reused) if at is not None and at < total}
    points = sorted(bounds)
    found: list[Segment] = []
    pending = sorted(answers, reverse=True)
    for start, end in itertools.pairwise(points):
        while pending and pending[-1][1] <= start:
            pending.pop()
        answer = pending[-1][2] if pending and pending[-1][0] <= start else None
        source = "" if reused is None else "ledger" if start < reused else "encoded"
        found.append(Segment(start, end, None if cached is None else start < cached, source, answer))
    return found


def deliveries_of(turn: InspectedTurn) -> list[Delivery]:
    """When each complete call could have run."""
    following = [block.started for block in turn.blocks[1:]] + [turn.ended]
    return [
        Delivery(
            block.name,
            block.call_id,
            _ms(turn, turn.ended),
            _ms(turn, begins),
            _ms(turn, block.dispatched or block.stopped),
        )
        for block, begins in zip(turn.blocks, following, strict=False)
        if block.kind == "tool_use" and block.complete
    ]


def _answers_kept(turn: InspectedTurn, ancestors: Iterable[InspectedTurn]) -> Sequence[tuple[int, int, int]]:
    """Start, end and number of the earlier answers whose own tokens the prompt has."""
    found, shared, later = [], turn.prompt_tokens, turn
    for one in ancestors:
        difference = later.difference
        if difference is None or difference.at is None:
            break
        shared = min(shared, difference.at)
        end = one.prompt_tokens + len(one.output)
        if one.output and end <= shared:
            found.append((one.prompt_tokens, end, one.number))
        later = one
    return found


def _again(turn: InspectedTurn) -> tuple[int, int]:
    """Tokens computed again: those behind the difference, as far as the worker did not hold the new prompt from another
    session, and those of the common beginning."""
    difference = turn.difference
    if difference is None:
        return 0, 0
    if difference.at is None or turn.cached is None:
        return difference.again, 0
    computed = max(0, turn.prompt_tokens - turn.cached)
    lost = max(0, min(difference.at, turn.prompt_tokens) - turn.cached)
    return min(difference.again, computed - lost), lost if lost >= MIN_LOST else 0


def _cost(fold: Fold, turn: InspectedTurn, previous: InspectedTurn | None) -> Cost | None:
    if turn.difference is None or previous is None:
        return None
    changed, lost = _again(turn)
    rate = fold.rate(turn.model)
    per_token = rate.ms_per_token
    reason = ""
    if lost:
        reason = f"{turn.worker} did not hold them any more, or never"
        if turn.worker != previous.worker:
            reason = f"the turn went to {turn.worker}, the previous one to {previous.worker}"
    return Cost(
        changed,
        None if per_token is None else changed * per_token,
        lost,
        None if per_token is None else lost * per_token,
        reason,
        per_token,
        len(rate),
    )


def _ms(turn: InspectedTurn, time: float | None) -> float | None:
    return None if time is None else round(1000.0 * (time - turn.received), 2)
