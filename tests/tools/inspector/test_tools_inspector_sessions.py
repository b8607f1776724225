"""Turns become sessions, by their session ids or by their histories."""

from schemas.conversation import Call, Message, Text
from tests.tools.inspector.by_hand import Bus, answer, asked, result, user
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.turns import InspectedTurn

LS = Call("toolu_1", "Bash", '{"command": "ls"}')


def test_turns_of_a_session_follow_each_other(bus: Bus) -> None:
    first = bus.turn(asked(user("Q")), range(9), [100], LS)
    history = (user("Q"), answer(LS), result(LS, "a.txt"))
    second = bus.turn(asked(*history), range(20), [101], Text("There is a.txt."))
    third = bus.turn(
        asked(*history, answer(Text("There is a.txt. ")), user("More")),
        range(30),
        [102],
        Text("No."),
    )
    assert [turn.session for turn in (second, third)] == [first.id, first.id]
    assert [turn.number for turn in (first, second, third)] == [1, 2, 3]
    assert [turn.previous for turn in (first, second, third)] == ["", first.id, second.id]
    assert bus.fold.sessions == {first.id: [first.id, second.id, third.id]}


def test_what_is_known_of_a_history_is_that_of_reading_all_of_it(bus: Bus) -> None:
    """Requests that extend a history, change it, follow an earlier turn, or begin an answer."""
    first = bus.turn(asked(user("Q")), range(100), [1], Text("A"))
    history = [user("Q"), answer(Text("A")), user("Q2")]
    second = bus.turn(asked(*history), range(200), [2], Text("B"))
    other = bus.turn(asked(*history[:2], user("Other")), range(200), [3], Text("C"))
    begun = bus.turn(asked(*history, answer(Text("B"))), range(300), [4], Text(" and more"))
    ended = [*history, answer(Text("B"), Text(" and more")), user("Q3")]
    last = bus.turn(asked(*ended), range(400), [5], Text("D"))
    edited = bus.turn(
        asked(user("Edited"), *ended[1:], answer(Text("D")), user("Q4")), range(9), [6]
    )
    turns = [first, second, other, begun, last, edited]
    assert {turn.session for turn in turns} == {first.id}

    for turn in turns:
        stored = bus.fold.prompts.get(turn.id)
        assert stored is not None
        alone = Bus(Fold())
        again = alone.turn(stored.conversation, range(9), [1])
        read = alone.fold.prompts.get(again.id)
        assert read is not None
        assert (read.keys, read.characters) == (stored.keys, stored.characters)


def test_without_a_session_id_the_history_decides(bus: Bus) -> None:
    """Sessions may have answers that are alike, and then differ in their first question."""

    def turn(*messages: Message) -> InspectedTurn:
        return bus.turn(asked(*messages, session=None), range(9), [100], Text("Done."))

    one, other = turn(user("One")), turn(user("Other"))
    assert one.session != other.session
    for question, first in (("One", one), ("Other", other)):
        assert turn(user(question), answer(Text("Done.")), user("Again")).previous == first.id
