"""Makes what the page shows: rows of the list, one turn, one session with its helpers. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from turnwire_tools.inspector.difference import computed_again
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.labels import first_words
from turnwire_tools.inspector.turns import InspectedTurn, Row, State, TurnDetails

MAX_SEGMENTS = 600

_SOURCES = {True: "ledger", False: "encoded", None: ""}
"""`PromptSegment.source`, by whether the ids of its prompt come from the ledger."""

_View = TypeVar("_View", bound=Row)


class PromptSegment(Struct, frozen=True):
    """A stretch of a prompt."""

    start: int
    end: int
    cached: bool | None
    """Whether the worker had it in its KV cache."""
    source: str
    """`ledger`: its ids are those of an earlier prompt or answer; `encoded`: of text that was
    encoded; "": unknown."""
    answer: int | None = None
    """It is the answer of the session's turn of this number, in its original tokens."""


class Cost(Struct, frozen=True):
    """What a turn computed that a previous turn had computed."""

    changed: int
    """Tokens computed again because of the difference to the previous prompt and answer."""
    lost: int
    """Tokens of the common beginning that the worker did not hold."""
    lost_reason: str
    ms_per_token: float | None
    """Prefill of this deployment, as observed."""
    turns: int
    """Turns from which that was estimated."""


class InspectedTurnView(TurnDetails, kw_only=True):
    """One turn in full."""

    segments: list[PromptSegment]
    previous: Row | None
    cost: Cost | None
    tokens: bool
    """Whether the output's tokens are known."""


class Helper(Struct, frozen=True):
    """A session that an agent started: of a helper, or of a background request."""

    session: str
    turn: str
    """The turn of the agent after which it began; "": that is not kept."""
    call_id: str
    """The call in that turn with the helper's task; "": it is not known."""
    first: Row
    """Its first turn."""
    turns: int
    prompt: int
    cached: int
    output: int
    state: State
    """The state of its newest turn."""


class SessionView(Struct, frozen=True):
    """The turns of a session, oldest first, and the sessions that they started."""

    id: str
    title: str
    """The client's own title; "": there is none."""
    turns: list[Row]
    reasons: dict[str, str]
    """For each turn: why its prompt does not extend the previous one."""
    parent: Row | None
    """The first turn of the agent that started this session, with that session's title."""
    helpers: list[Helper]


def row_of(turn: InspectedTurn) -> Row:
    """The row of a turn."""
    return _view(Row, turn)


def rows_of(fold: Fold, names: Iterable[str]) -> list[Row]:
    """The rows of the turns that are kept."""
    return [row_of(fold.turns[name]) for name in names if name in fold.turns]


def turn_view(fold: Fold, turn: InspectedTurn) -> InspectedTurnView:
    """All of a turn."""
    previous = None
    if turn.previous in fold.turns:
        previous = row_of(fold.turns[turn.previous])
    blocks = turn.blocks
    if not fold.texts:
        blocks = [replace(block, text="") for block in blocks]
    return _view(
        InspectedTurnView,
        turn,
        blocks=blocks,
        segments=segments_of(turn, fold.ancestors(turn)),
        previous=previous,
        cost=cost_of(fold, turn),
        tokens=fold.texts and bool(turn.ids),
    )


def session_view(fold: Fold, name: str) -> SessionView | None:
    """A session by its own id or that of a turn in it; None where there is none."""
    session = name
    if name in fold.turns:
        session = fold.turns[name].session
    names = fold.sessions.get(session, [])
    if not names:
        return None

    reasons: dict[str, str] = {}
    for turn_id in names:
        difference = fold.turns[turn_id].difference
        if difference is not None and difference.cause != "none":
            reasons[turn_id] = difference.reason
    first = fold.turns[names[0]]
    return SessionView(
        id=session,
        title=_title(fold, session),
        turns=rows_of(fold, names),
        reasons=reasons,
        parent=_agent(fold, first.parent),
        helpers=[_helper(fold, child, names) for child in _children(fold, session)],
    )


def _agent(fold: Fold, session: str) -> Row | None:
    """The first turn of a session with its title; None where there is none."""
    names = fold.sessions.get(session)
    return replace(row_of(fold.turns[names[0]]), title=_title(fold, session)) if names else None


def _children(fold: Fold, parent: str) -> Iterator[str]:
    for session, names in fold.sessions.items():
        if session != parent and fold.turns[names[0]].parent == parent:
            yield session


def _title(fold: Fold, session: str) -> str:
    """The newest title of a session."""
    title = ""
    for child in _children(fold, session):
        newest = fold.turns[fold.sessions[child][-1]]
        title = newest.title or title
    return title


def _helper(fold: Fold, session: str, agent: Sequence[str]) -> Helper:
    turns = [fold.turns[name] for name in fold.sessions[session]]
    first = turns[0]
    before = [name for name in agent if fold.turns[name].time <= first.time]
    caller = "" if not before else before[-1]
    return Helper(
        session=session,
        turn=caller,
        call_id=_task_call(fold.turns[caller], first.label) if caller else "",
        first=row_of(first),
        turns=len(turns),
        prompt=sum(turn.prompt for turn in turns),
        cached=sum(turn.cached or 0 for turn in turns),
        output=sum(turn.output for turn in turns),
        state=turns[-1].state,
    )


def _task_call(turn: InspectedTurn, task: str) -> str:
    """The call that has a helper's task among its arguments; "": none has."""
    for block in turn.blocks:
        if task and block.kind == "tool_use" and task in _arguments(block.text):
            return block.call_id
    return ""


def _arguments(text: str) -> list[str]:
    """The first words of each argument that is a text."""
    try:
        arguments = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
    if not isinstance(arguments, dict):
        return []
    return [first_words(value) for value in arguments.values() if isinstance(value, str)]


def segments_of(turn: InspectedTurn, ancestors: Iterable[InspectedTurn]) -> list[PromptSegment]:
    """The prompt in stretches of one kind, from its start to its end."""
    total = turn.prompt
    answers = [answer for answer in _answers_kept(turn, ancestors) if answer.end <= total]
    answers = answers[:MAX_SEGMENTS]

    bounds = {0, total}
    for answer in answers:
        bounds |= {answer.start, answer.end}
    bounds |= {at for at in (turn.cached, turn.reused) if at is not None and at < total}

    by_start = {answer.start: answer for answer in answers}
    segments: list[PromptSegment] = []
    newest = _KeptAnswer(0, 0, 0)
    for start, end in pairwise(sorted(bounds)):
        newest = by_start.get(start, newest)
        is_answer = start < newest.end
        segments.append(
            PromptSegment(
                start,
                end,
                cached=_is_before(turn.cached, start),
                source=_SOURCES[_is_before(turn.reused, start)],
                answer=newest.number if is_answer else None,
            )
        )
    return segments


def _is_before(boundary: int | None, at: int) -> bool | None:
    """Whether a place is before a boundary; None: the boundary is unknown."""
    return None if boundary is None else at < boundary


def _view(kind: type[_View], turn: InspectedTurn, **more: Any) -> _View:
    """The turn's fields that a view has, and `more`."""
    fields = {name: getattr(turn, name) for name in kind.__struct_fields__ if name not in more}
    return kind(**fields, **more)


class _KeptAnswer(Struct, frozen=True):
    """An earlier answer that a prompt has in its original tokens."""

    start: int
    end: int
    number: int
    """The number of its turn."""


def _answers_kept(turn: InspectedTurn, ancestors: Iterable[InspectedTurn]) -> list[_KeptAnswer]:
    answers: list[_KeptAnswer] = []
    shared = turn.prompt
    later = turn
    for earlier in ancestors:
        difference = later.difference
        if difference is None or difference.at is None:
            break
        shared = min(shared, difference.at)
        end = earlier.prompt + len(earlier.ids)
        if earlier.ids and end <= shared:
            answers.append(_KeptAnswer(earlier.prompt, end, earlier.number))
        later = earlier
    return answers


def cost_of(fold: Fold, turn: InspectedTurn) -> Cost | None:
    """What a turn computed again; None: it has no previous one."""
    if turn.difference is None:
        return None

    changed, lost = computed_again(turn)
    reason = ""
    if lost:
        reason = f"{turn.worker} did not hold them any more, or never"
        previous = fold.turns.get(turn.previous, turn)
        if turn.worker != previous.worker:
            reason = f"the turn went to {turn.worker}, the previous one to {previous.worker}"

    rate = fold.rates[turn.model]
    return Cost(changed, lost, reason, rate.ms_per_token, len(rate))
