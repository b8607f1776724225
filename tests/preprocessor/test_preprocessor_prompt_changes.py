from array import array

from prometheus_client import CollectorRegistry
from structlog import get_logger

from schemas.conversation import Conversation, Message, Text
from services.ledger.difference import Change, Difference
from services.preprocessor.prompt_changes import PromptChangeReporter, SeenPrompt, answers_of

OPENING = "<assistant>"


def ids(text: str) -> "array[int]":
    return array("I", map(ord, text))


class Session:
    """Prompts with one key; one token a character. Text between `<assistant>` and `<user>` is an
    answer."""

    def __init__(self, room: int = 1 << 20, *, one_session: bool = True) -> None:
        self.reporter = PromptChangeReporter(get_logger(), CollectorRegistry(), room)
        self.one_session = one_session

    def prompt(
        self, text: str, tools: tuple[str, ...] = ("Read", "Write"), name: str = "s"
    ) -> Difference | None:
        whole = text + OPENING
        conversation = conversation_of(text)
        seen = SeenPrompt(text=text, ids=ids(whole), tools=tools, answers=answers_of(conversation))
        key = (None, name if self.one_session else None, name)
        return self.reporter.compare(key, seen, whole, conversation)


def conversation_of(text: str) -> Conversation:
    question, *rest = text.split(OPENING)
    turns = [Message("user", [Text(question)])]
    for part in rest:
        answer, _, user = part.partition("<user>")
        turns += [Message("assistant", [Text(answer)])] + (
            [Message("user", [Text(user)])] if user else []
        )
    return Conversation("m", turns)


def front(date: str = "2026-11-20") -> str:
    return f"You are an agent. Today is {date}. Session 5f811fffeceb. Be good\n"


def test_sessions_are_separate_and_bounded() -> None:
    session = Session(room=10_000)
    session.prompt(front(), name="a")
    assert session.prompt(front(date="1999-01-01"), name="b") is None
    for number in range(20):
        session.prompt("x" * 500, name=f"n{number}")
    assert session.prompt(front(date="1999-01-01"), name="a") is None


def test_sessions_without_an_id_and_with_one_question_are_distinguished() -> None:
    session = Session(one_session=False)
    for day in ("2026-11-20", "2026-11-21", "2026-11-22"):
        assert session.prompt(front(day) + "Q") is None
    for answer in ("A", "B", "C"):
        for day in ("2026-11-21", "2026-11-20", "2026-11-22"):
            begun = f"{front(day)}Q<assistant>{answer}{day}<user>Q2"
            assert session.prompt(begun) is None
            assert session.prompt(f"{begun}<assistant>D<user>Q3") is None


def test_variation_in_a_session_without_an_id_is_named() -> None:
    session = Session(one_session=False)
    session.prompt(front("1999-01-01") + "Q")
    session.prompt(front() + "Q")
    session.prompt(front() + "Q<assistant>A<user>Q2")
    found = session.prompt(front("2026-11-21") + "Q<assistant>A<user>Q2<assistant>B<user>Q3")
    assert found is not None
    assert found.changes == [
        Change("system", "the text before the first answer", "2026-11-20.", "2026-11-21.", "date")
    ]
