"""`truncation: auto`: a conversation that does not fit loses its oldest turns, and is asked again.

Instructions stay, the last question and all behind it stay, and a result goes with its call. How many turns go is
found by counting exactly, in as many steps as the logarithm of their number: this happens to one request in thousands.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from schemas.conversation import Call, Conversation, Result, Turn
from schemas.errors import ContextOverflow

_INSTRUCTIONS = ("system", "developer")

Count = Callable[[Conversation], Awaitable[int]]
"""Exact prompt tokens."""


async def shortened(conversation: Conversation, overflow: ContextOverflow, count: Count) -> Conversation:
    """The conversation with as few turns less as make it fit. Raises `overflow` again where none would do, and for a
    preprocessor that does not say how much fits; TurnwireError if the count fails."""
    limit = (overflow.info.details or {}).get("max_prompt_tokens")
    most = len(conversation.turns) - _kept_from(conversation.turns)
    droppable = [at for at, turn in enumerate(conversation.turns[: -most or None]) if turn.role not in _INSTRUCTIONS]
    if limit is None or not droppable:
        raise overflow
    low, high = 1, len(droppable)
    best: Conversation | None = None
    while low <= high:
        middle = (low + high) // 2
        candidate = without(conversation, droppable[:middle])
        if await count(candidate) <= limit:
            best, high = candidate, middle - 1
        else:
            low = middle + 1
    if best is None:
        raise overflow
    return best


def without(conversation: Conversation, places: Sequence[int]) -> Conversation:
    """The conversation without the turns at these places, and without the results of calls that are gone."""
    gone = set(places)
    calls = {part.call_id for at, turn in enumerate(conversation.turns) if at in gone for part in _calls(turn)}
    turns = []
    for at, turn in enumerate(conversation.turns):
        if at in gone:
            continue
        parts = [part for part in turn.parts if not (isinstance(part, Result) and part.call_id in calls)]
        if parts or not turn.parts:
            turns.append(turn if len(parts) == len(turn.parts) else msgspec.structs.replace(turn, parts=parts))
    return msgspec.structs.replace(conversation, turns=turns)


def _calls(turn: Turn) -> list[Call]:
    return [part for part in turn.parts if isinstance(part, Call)]


def _kept_from(turns: Sequence[Turn]) -> int:
    """Where the last question begins; in a conversation without one, the last turn."""
    for at in range(len(turns) - 1, -1, -1):
        if turns[at].role == "user":
            return at
    return max(0, len(turns) - 1)
