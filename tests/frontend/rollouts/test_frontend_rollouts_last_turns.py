"""The last turns of rollouts, with which the next prompt is compared."""

from services.frontend.rollouts.last_turns import KEPT, LastTurns
from services.rollouts.sampled_turn import SampledTurn
from tests.frontend.rollouts.records import sampled_turn


def test_nearest_has_most_tokens_in_common() -> None:
    recent = LastTurns()
    main = sampled_turn("main", [1, 2, 3], [4])
    helper = sampled_turn("helper", [1, 9], [8])
    for turn in (main, helper):
        recent.add("ro/1", turn)
    found = recent.nearest("ro/1", sampled_turn("next", [1, 2, 3, 4, 5]))
    assert found is not None
    assert (found.id, found.prompt, found.output) == ("main", main.prompt, main.output)
    found = recent.nearest("ro/1", sampled_turn("next", [1, 9, 7]))
    assert found is not None
    assert found.id == "helper"
    assert recent.nearest("ro/1", sampled_turn("other", [7])) is None
    assert recent.nearest("ro/2", sampled_turn("next", [1, 2, 3, 4])) is None


def test_turn_replaces_those_that_it_continues() -> None:
    recent = LastTurns()
    for length in range(1, 20):
        recent.add("ro/1", sampled_turn(f"t{length}", [1] * length, [2]))
    found = recent.nearest("ro/1", sampled_turn("next", [1, 3]))
    assert found is not None
    assert found.id == "t19"
    for number in range(KEPT):
        recent.add("ro/1", sampled_turn(f"h{number}", [5, number]))
    assert recent.nearest("ro/1", sampled_turn("next", [1, 3])) is None, "only the newest are kept"


def test_memory_is_bounded() -> None:
    recent = LastTurns(max_bytes=10_000)
    for number in range(50):
        recent.add(f"ro/{number}", sampled_turn("t", [1] * 600, [2] * 10))
    kept = [number for number in range(50) if recent.nearest(f"ro/{number}", _next())]
    assert kept == [48, 49]
    recent.add("ro/large", sampled_turn("t", [1] * 3000, [2]))
    assert recent.nearest("ro/large", _next()) is None
    assert recent.nearest("ro/49", _next()) is not None
    for number in range(50):
        recent.add(f"short/{number}", sampled_turn("t", [1], [2]))
    kept = [number for number in range(50) if recent.nearest(f"short/{number}", _next())]
    assert len(kept) == 9, "a turn has more than its tokens"


def _next() -> SampledTurn:
    return sampled_turn("next", [1, 1])
