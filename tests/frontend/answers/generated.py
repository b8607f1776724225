"""Generated turns, and the batches in which they arrive."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    FinishReason,
    TokenLogprob,
    TurnEvent,
    Usage,
)
from tests.kit.events import with_dispatch
from tests.kit.stories import Batches

Turn: TypeAlias = list[TurnEvent]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def turns(draw: st.DrawFn, calls: st.SearchStrategy[tuple[str, str]]) -> Turn:
    """A turn with these calls, each whole or cut; any last block may be cut."""
    turn: Turn = []
    kinds = draw(st.lists(st.sampled_from(["reasoning", "text", "tool_use"]), max_size=6))
    for block, kind in enumerate(kinds):
        pieces = draw(st.lists(TEXT, max_size=3))
        seal = draw(st.sampled_from([None, "c2ln"])) if kind == "reasoning" else None
        start, complete = BlockStart(block, kind), True  # type: ignore[arg-type]
        if kind == "tool_use":
            name, arguments = draw(calls)
            start = BlockStart(block, "tool_use", name, f"call_{block}")
            cuts = draw(st.lists(st.integers(0, len(arguments)), max_size=3))
            places = [0, *sorted(cuts), len(arguments)]
            pieces = [arguments[begin:end] for begin, end in pairwise(places)]
            complete = draw(st.booleans())
        turn.append(start)
        offset = 0
        for piece in pieces:
            token = TokenLogprob(piece, -1.0, offset, piece.encode())
            turn.append(Delta(block, offset, piece, [token] if kind == "text" else None))
            offset += len(piece)
        turn.append(BlockStop(block, complete, offset, seal))
    last = turn[-1] if turn else None
    if isinstance(last, BlockStop) and draw(st.booleans()):
        turn[-1] = replace(last, complete=False)
    usage = Usage(9, draw(st.integers(0, 9)), draw(st.integers(0, 9)), 1)
    reason = draw(st.sampled_from(list(FinishReason)[:4]))
    turn.append(Finish(reason, len(kinds), usage, "END"))
    return with_dispatch(turn)[0]


def draw_batches(data: st.DataObject, several: Sequence[Turn]) -> Batches:
    """The turns of an answer's choices, as they may arrive."""
    batches: Batches = []
    left = [list(turn) for turn in several]
    while any(left):
        choice = data.draw(st.sampled_from([at for at, turn in enumerate(left) if turn]))
        take = data.draw(st.integers(1, len(left[choice])))
        batches.append((choice, left[choice][:take]))
        left[choice] = left[choice][take:]
    return batches
