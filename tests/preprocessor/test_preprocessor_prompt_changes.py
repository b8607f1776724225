"""Changes of the text before a session's answers are named, though it has no session id."""

from array import array

from prometheus_client import CollectorRegistry
from structlog import get_logger

from schemas.conversation import Conversation
from services.preprocessor.changes.prompt_changes import (
    PromptChangeReporter,
    SeenPrompt,
    answers_of,
)
from services.prompt_diff.change import Change
from services.prompt_diff.prompts import Difference
from tests.kit.conversations import assistant, user

OPENING = "<assistant>"


def ids(text: str) -> "array[int]":
    return array("I", map(ord, text))


class Session:
    """Prompts without a session id; one token a character. Text between `<assistant>` and `<user>`
    is an answer."""

    def __init__(self) -> None:
        self.reporter = PromptChangeReporter(get_logger(), CollectorRegistry(), 1 << 20)

    def prompt(self, text: str) -> Difference | None:
        whole = text + OPENING
        conversation = conversation_of(text)
        seen = SeenPrompt(
            text=text, ids=ids(whole), tools=("Read",), answers=answers_of(conversation)
        )
        return self.reporter.compare((None, None, "s"), seen, whole, conversation)


def conversation_of(text: str) -> Conversation:
    question, *rest = text.split(OPENING)
    turns = [user(question)]
    for part in rest:
        answer, _, question = part.partition("<user>")
        turns += [assistant(answer)] + ([user(question)] if question else [])
    return Conversation("m", turns)


def front(date: str = "2026-11-20") -> str:
    return f"You are an agent. Today is {date}. Session 5f811fffeceb. Be good\n"


def test_sessions_without_an_id_and_with_one_question_are_distinguished() -> None:
    session = Session()
    for day in ("2026-11-20", "2026-11-21", "2026-11-22"):
        assert session.prompt(front(day) + "Q") is None
    for answer in ("A", "B", "C"):
        for day in ("2026-11-21", "2026-11-20", "2026-11-22"):
            begun = f"{front(day)}Q<assistant>{answer}{day}<user>Q2"
            assert session.prompt(begun) is None
            assert session.prompt(f"{begun}<assistant>D<user>Q3") is None


def test_variation_in_a_session_without_an_id_is_named() -> None:
    session = Session()
    session.prompt(front("1999-01-01") + "Q")
    session.prompt(front() + "Q")
    session.prompt(front() + "Q<assistant>A<user>Q2")
    found = session.prompt(front("2026-11-21") + "Q<assistant>A<user>Q2<assistant>B<user>Q3")
    assert found is not None
    assert found.changes == [
        Change("system", "the text before the first answer", "2026-11-20.", "2026-11-21.", "date")
    ]
