"""What the page shows of turns and sessions."""

from schemas.conversation import Call, Text
from tests.tools.inspector.by_hand import Bus, answer, asked, result, user
from turnwire_tools.inspector.views import PromptSegment, segments_of, session_view, turn_view

LS = Call("toolu_1", "Bash", '{"command": "ls"}')
HISTORY = (user("Q"), answer(LS), result(LS, "a.txt"))


def test_a_prompt_is_cut_into_cached_original_and_encoded(bus: Bus) -> None:
    bus.turn(asked(user("Q")), range(1000, 1200), [1, 2, 3, 4], LS)
    ids = [*range(1000, 1200), 1, 2, 3, 4, *range(2000, 2300)]
    turn = bus.turn(asked(*HISTORY), ids, [5], Text("x"), cached=192, reused=204, recall="reused")
    assert segments_of(turn, bus.fold.ancestors(turn)) == [
        PromptSegment(0, 192, True, "ledger"),
        PromptSegment(192, 200, False, "ledger"),
        PromptSegment(200, 204, False, "ledger", 1),
        PromptSegment(204, 504, False, "encoded"),
    ]
    other = bus.turn(asked(user("Other")), range(10), [1], recall="")
    assert segments_of(other, ()) == [PromptSegment(0, 10, False, "")]


def test_a_difference_costs_tokens_and_time(bus: Bus) -> None:
    bus.turn(asked(user("Q")), range(1000, 3000), [1, 2, 3, 4], LS)
    ids = [*range(1000, 1200), *range(5000, 7000)]
    turn = bus.turn(asked(*HISTORY, system=[Text("New.")]), ids, [5], Text("x"), cached=192)
    view = turn_view(bus.fold, turn)
    assert view.cost is not None
    assert (view.cost.changed, view.cost.lost, view.again) == (1804, 0, 1804)
    assert view.cost.ms_per_token == bus.fold.rates["m"].ms_per_token
    assert (view.previous is not None, view.tokens, view.max_tokens) == (True, True, 99)


def test_a_session_has_its_turns_and_reasons(bus: Bus) -> None:
    first = bus.turn(asked(user("Q")), range(1000, 3000), [1, 2], LS)
    second = bus.turn(asked(*HISTORY, system=[Text("New.")]), range(5000, 7000), [5], Text("x"))
    for name in (first.id, second.id):
        view = session_view(bus.fold, name)
        assert view is not None
        assert [row.number for row in view.turns] == [1, 2]
        assert view.reasons == {second.id: "system text 1 changed"}
    assert session_view(bus.fold, "unknown") is None
