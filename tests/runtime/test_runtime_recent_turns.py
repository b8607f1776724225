"""The memory of turns that are cancelled or finished."""

from services.runtime import recent_turns
from services.runtime.recent_turns import RecentTurns
from tests.kit.waiting import LIMIT_S, eventually


def test_newest_attempt_stays_and_the_oldest_turns_go_first() -> None:
    turns = RecentTurns()
    assert turns.attempt("a") == 0
    turns.note("a", 2)
    turns.note("a", 1)
    assert turns.attempt("a") == 2
    for number in range(recent_turns.MAX_TURNS):
        turns.note(str(number), 1)
    assert "a" not in turns
    assert "0" in turns


async def test_turns_are_dropped_after_their_time() -> None:
    turns, brief = RecentTurns(LIMIT_S), RecentTurns(0.02)
    turns.note("a", 1)
    brief.note("a", 1)
    await eventually(lambda: "a" not in brief)
    assert "a" in turns
