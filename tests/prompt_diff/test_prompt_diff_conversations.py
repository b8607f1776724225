"""The difference of two prompts from their conversations."""

from typing import Any

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Text,
    Thinking,
    ToolSpec,
)
from services.prompt_diff.change import Change
from services.prompt_diff.prompts import ComparedPrompt, difference
from tests.kit.conversations import assistant, result, user
from tests.kit.every import for_rows

TOOLS = [ToolSpec("Bash", "Runs a command."), ToolSpec("Read", "Reads a file.")]
LS = Call("toolu_1", "Bash", '{"command": "ls"}')
THOUGHT = Reasoning("I look.")
QUESTION = user("Q")
RESULT = result("a.txt", "toolu_1")
ANSWER = "message 2 (assistant)"
HISTORY = (QUESTION, assistant(THOUGHT, LS), RESULT)


def asked(*messages: Message, **more: Any) -> Conversation:
    more = {"system": [Text("You are an agent.")], "tools": TOOLS, **more}
    return Conversation("m", list(messages), **more)


def changes(before: Conversation, now: Conversation) -> list[Change]:
    """The changes after an answer with a thought and a call."""
    found = difference(
        ComparedPrompt(conversation=before), ComparedPrompt(conversation=now), [THOUGHT, LS]
    )
    assert (found.at, found.again) == (None, 0)
    return found.changes


@for_rows(
    [
        ({"system": [Text("You are another agent.")]}, "system", "system text 1"),
        ({"tools": [*TOOLS, ToolSpec("Grep")]}, "tools", "the tool list"),
        ({"tools": TOOLS[::-1]}, "tools", "the order of the tools"),
        ({"tools": [ToolSpec("Bash", "Runs it."), TOOLS[1]]}, "tools", "the tool Bash"),
        ({"thinking": Thinking("disabled")}, "settings", "the setting thinking"),
        ({"format": {"type": "json_schema"}}, "settings", "the setting format"),
    ]
)
def test_change_before_the_messages_is_named(now: dict[str, Any], kind: str, where: str) -> None:
    assert changes(asked(QUESTION), asked(*HISTORY)) == []
    (change,) = changes(asked(QUESTION), asked(*HISTORY, **now))
    assert (change.kind, change.where) == (kind, where)
    assert change.was != change.now


@for_rows(
    [
        ([user("Edited"), *HISTORY[1:]], "message", "message 1 (user)"),
        ([QUESTION, assistant(THOUGHT, "x"), RESULT], "answer", ANSWER),
        ([QUESTION, RESULT], "answer", ANSWER),
        ([QUESTION, assistant(LS), RESULT], "reasoning", ANSWER),
    ]
)
def test_changed_history_is_named(messages: list[Message], kind: str, where: str) -> None:
    (change,) = changes(asked(QUESTION), asked(*messages))
    assert (change.kind, change.where) == (kind, where)


LONG = [user("Q"), assistant("A"), user("Q2"), assistant("A2"), user("Q3")]


@for_rows(
    [
        ([*LONG[:2], *LONG[3:]], "history", "message 3 (user)", "Q2", "left out"),
        (
            [*LONG[:1], *LONG[3:], assistant("A3"), user("Q4")],
            "history",
            "messages 2 to 3",
            "A",
            "left out",
        ),
        ([*LONG[:2], user("New"), *LONG[2:]], "history", "message 3 (user)", "not there", "New"),
        ([*LONG[:2], user("Edited"), *LONG[3:]], "message", "message 3 (user)", "Q2", "Edited"),
    ]
)
def test_later_messages_are_not_changed_by_one_that_is_left_out_or_inserted(
    messages: list[Message], kind: str, where: str, was: str, now: str
) -> None:
    (change,) = changes(asked(*LONG), asked(*messages))
    assert (change.kind, change.where, change.was, change.now) == (kind, where, was, now)


def test_a_summarized_history_is_shorter() -> None:
    shorter, edited = changes(asked(*LONG), asked(user("A summary."), assistant("A"), user("Q9")))
    assert (shorter.was, shorter.now) == ("5 messages", "3 messages")
    assert (edited.kind, edited.where) == ("message", "message 1 (user)")


def test_spelling_of_arguments_and_white_space_are_not_a_change() -> None:
    answer: list[Part] = [THOUGHT, Text("\n\nI look."), Call("toolu_1", "Bash", '{"command":"ls"}')]
    now = asked(QUESTION, Message("assistant", answer), RESULT)
    found = difference(
        ComparedPrompt(conversation=asked(QUESTION)),
        ComparedPrompt(conversation=now),
        [THOUGHT, Text("I look."), LS],
    )
    assert found.changes == []
