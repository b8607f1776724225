from array import array

import pytest

from services.preprocessor.prompt_drift import Difference, PromptWatch

FRONT = "You are an agent. Today is {}. Session {}. Speed {}. {}\n"


def ids(text: str) -> "array[int]":
    return array("I", map(ord, text))


class Session:
    """Prompts of one session; one token a character."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.watch = PromptWatch(room)

    def prompt(self, text: str, tools: tuple[str, ...] = ("Read", "Write"), name: str = "s") -> Difference | None:
        whole = text + "<assistant>"
        return self.watch.look(name, whole, len(text), ids(whole), tools)


def front(date: str = "2026-11-20", session: str = "5f811fffeceb", speed: str = "7", text: str = "Be good") -> str:
    return FRONT.format(date, session, speed, text)


def test_a_session_that_only_grows() -> None:
    session = Session()
    assert session.prompt(front() + "Q") is None
    assert session.prompt(front() + "Q<assistant>A<user>Q2") is None
    assert session.prompt(front() + "Q<assistant>A<user>Q2") is None


@pytest.mark.parametrize(
    ("changed", "cause", "was", "now"),
    [
        ({"date": "2026-11-21"}, "date", "2026-11-20.", "2026-11-21."),
        ({"session": "5f811fffec00"}, "id", "5f811fffeceb.", "5f811fffec00."),
        ({"speed": "8"}, "number", "7.", "8."),
        ({"text": "Be bad"}, "text", "good", "bad"),
    ],
)
def test_what_varies_is_named(changed: dict[str, str], cause: str, was: str, now: str) -> None:
    session = Session()
    session.prompt(front() + "Q")
    found = session.prompt(front(**changed) + "Q<assistant>A<user>Q2")
    assert found is not None
    assert (found.cause, found.was, found.now) == (cause, was, now)


def test_the_cost_is_what_is_computed_again() -> None:
    session = Session()
    session.prompt(front() + "Q")
    found = session.prompt(front(speed="8") + "Q<assistant>A")
    assert found is not None
    whole = front() + "Q<assistant>"
    assert found.tokens == len(whole) - whole.index("7.")


def test_a_tool_in_the_middle() -> None:
    session = Session()
    session.prompt("tools: Read, Write\nQ")
    found = session.prompt("tools: Read, Web, Write\nQ<assistant>A", ("Read", "Web", "Write"))
    assert found is not None
    assert (found.cause, found.was, found.now) == ("tools", "", "Web (2. of 3)")


def test_behind_the_first_answer_it_is_history() -> None:
    session = Session()
    session.prompt(front() + "Q")
    session.prompt(front() + "Q<assistant>thought 1, A<user>Q2")
    found = session.prompt(front() + "Q<assistant>A<user>Q2<assistant>B<user>Q3")
    assert found is not None
    assert found.cause == "history"


def test_sessions_are_apart_and_bounded() -> None:
    session = Session(room=10_000)
    session.prompt(front(), name="a")
    assert session.prompt(front(date="1999-01-01"), name="b") is None
    for number in range(20):
        session.prompt("x" * 500, name=f"n{number}")
    assert session.prompt(front(date="1999-01-01"), name="a") is None
