"""The memory of turns that are cancelled or finished."""

from services.runtime import recent_turns
from services.runtime.recent_turns import RecentTurns
from tests.kit.waiting import LIMIT_S, eventually


def test_newest_attempt_stays() -> None:
    turns = RecentTurns()
    assert "a" not in turns
    assert turns.attempt("a") == 0
    turns.note("a", 2)
    turns.note("a", 1)
    assert "a" in turns
    assert turns.attempt("a") == 2


def test_oldest_turns_go_first() -> None:
    turns = RecentTurns()
    for number in range(recent_turns.MAX_TURNS + 1):
        turns.note(str(number), 1)
    assert "0" not in turns
    assert "1" in turns


async def test_turns_are_dropped_after_their_time() -> None:
    turns, brief = RecentTurns(LIMIT_S), RecentTurns(0.02)
    turns.note("a", 1)
    brief.note("a", 1)
    await eventually(lambda: "a" not in brief)
    assert "a" in turns
