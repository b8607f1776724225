from array import array

import pytest

from schemas.conversation import Call, Conversation, Message, Reasoning, Text
from services.preprocessor.drift import Difference, PromptWatch, SeenPrompt, answers_of, head_of

FRONT = "You are an agent. Today is {}. Session {}. Speed {}. {}\n"
OPENING = "<assistant>"


def ids(text: str) -> "array[int]":
    return array("I", map(ord, text))


class Session:
    """Prompts with one key; one token a character. Text between `<assistant>` and `<user>` is an answer."""

    def __init__(self, room: int = 1 << 20, *, one_session: bool = True) -> None:
        self.watch = PromptWatch(room)
        self.one_session = one_session

    def prompt(self, text: str, tools: tuple[str, ...] = ("Read", "Write"), name: str = "s") -> Difference | None:
        whole = text + OPENING
        conversation = conversation_of(text)
        head = head_of(conversation, whole, len(text))
        seen = SeenPrompt(text, head, ids(whole), tools, answers_of(conversation))
        return self.watch.look(name, seen, whole, one_session=self.one_session)


def conversation_of(text: str) -> Conversation:
    question, *rest = text.split(OPENING)
    turns = [Message("user", [Text(question)])]
    for part in rest:
        answer, _, user = part.partition("<user>")
        turns += [Message("assistant", [Text(answer)])] + ([Message("user", [Text(user)])] if user else [])
    return Conversation("m", turns)


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


def test_sessions_without_an_id_and_with_one_question_are_told_apart() -> None:
    session = Session(one_session=False)
    for day in ("2026-11-20", "2026-11-21", "2026-11-22"):
        assert session.prompt(front(day) + "Q") is None
    for answer in ("A", "B", "C"):
        for day in ("2026-11-21", "2026-11-20", "2026-11-22"):
            assert session.prompt(f"{front(day)}Q<assistant>{answer}{day}<user>Q2") is None
            assert session.prompt(f"{front(day)}Q<assistant>{answer}{day}<user>Q2<assistant>D<user>Q3") is None


def test_what_varies_in_a_session_without_an_id_is_named() -> None:
    session = Session(one_session=False)
    session.prompt(front("1999-01-01") + "Q")
    session.prompt(front() + "Q")
    session.prompt(front() + "Q<assistant>A<user>Q2")
    found = session.prompt(front("2026-11-21") + "Q<assistant>A<user>Q2<assistant>B<user>Q3")
    assert found is not None
    assert (found.cause, found.was, found.now) == ("date", "2026-11-20.", "2026-11-21.")


def test_another_history_without_an_id_is_another_session() -> None:
    session = Session(one_session=False)
    session.prompt(front() + "Q<assistant>A<user>Q2")
    assert session.prompt(front("2026-11-21") + "Q<assistant>B<user>Q2<assistant>C<user>Q3") is None


def test_another_history_with_an_id_is_a_change() -> None:
    session = Session()
    session.prompt(front() + "Q<assistant>A<user>Q2")
    found = session.prompt(front() + "Q<assistant>B<user>Q2<assistant>C<user>Q3")
    assert found is not None
    assert found.cause == "history"


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ("{}Q<assistant>A<user>Q2<assistant>B<user>Q3", "history"),
        ("1{}Q<assistant>thought 1, A<user>Q2<assistant>B<user>Q3", "text"),
    ],
)
def test_after_a_restart_causes_are_named_correctly(changed: str, cause: str) -> None:
    """The first prompt that a new process sees is one in mid-session."""
    session = Session()
    assert session.prompt(front() + "Q<assistant>thought 1, A<user>Q2") is None
    found = session.prompt(changed.format(front()))
    assert found is not None
    assert found.cause == cause


def test_the_head_ends_with_the_last_text_before_the_first_answer() -> None:
    conversation = Conversation(
        "m",
        [
            Message("user", [Text("hi")]),
            Message("system", [Text("# Environment\n")]),
            Message("assistant", [Text("hi")]),
            Message("user", [Text("hi")]),
        ],
        system=[Text("x-anthropic-billing-header: cch=1;"), Text("Say hi.")],
    )
    text = "<system>Say hi.<user>hi<system># Environment<assistant>hi<user>hi"
    assert text[: head_of(conversation, text, len(text))] == "<system>Say hi.<user>hi<system># Environment"
    assert head_of(Conversation("m", conversation.messages[:2]), text, 7) == 7


def test_reasoning_and_blanks_do_not_tell_answers_apart() -> None:
    def answers(*parts: Text | Reasoning | Call) -> tuple[int, ...]:
        return answers_of(Conversation("m", [Message("user", [Text("Q")]), Message("assistant", list(parts))]))

    assert answers(Reasoning("hm"), Text("\n"), Text("A")) == answers(Text("A"))
    assert answers(Call("c1", "Read", "{}")) != answers(Call("c2", "Read", "{}"))
    assert answers() != ()


def test_many_sessions_alike_are_bounded() -> None:
    session = Session(room=10_000, one_session=False)
    for number in range(100):
        assert session.prompt(f"{number}" + "x" * 500 + "<assistant>A") is None
    assert session.prompt("99" + "x" * 500 + "<assistant>A<user>Q") is None
