"""Why a prompt departs from the one before it: each cause from the messages that it leaves on the
bus."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Media, Message, Reasoning, Text, Thinking
from schemas.frames import PromptImage
from tests.tools.inspector.by_hand import TOOLS, Bus, answer, asked, result, user
from turnwire_tools.inspector.turns import Departure

LS = Call("toolu_1", "Bash", '{"command": "ls"}')
PROMPT = range(1000, 1200)
OUTPUT = [1, 2, 3, 4]
THOUGHT = Reasoning("I look.")
HISTORY = (user("Q"), answer(THOUGHT, LS), result(LS, "a.txt"))


def compared(
    bus: Bus, now: Conversation, ids: Sequence[int], before: Conversation | None = None, **more: Any
) -> Departure:
    """The difference of a second turn to a first one, which asks `Q` and gets a call."""
    bus.turn(before or asked(user("Q")), PROMPT, OUTPUT, THOUGHT, LS)
    return difference(bus, now, ids, **more)


def difference(bus: Bus, now: Conversation, ids: Sequence[int], **more: Any) -> Departure:
    found = bus.turn(now, ids, [5], Text("x"), **more).difference
    assert found is not None
    return found


def changed_at(at: int) -> list[int]:
    """The first prompt and its answer with other tokens from a place on."""
    return [*[*PROMPT, *OUTPUT][:at], *range(9000, 9200)]


def dated(text: str) -> dict[str, Any]:
    return {"system": [Text(text)]}


FIRST = dated("You are an agent. It is 2026-01-01.")
NEXT_DAY = dated("You are an agent. It is 2026-01-02.")
OTHER_BASH = {"tools": [replace(TOOLS[0], description="Runs it."), TOOLS[1]]}
EDITED = (user("Edited"), *HISTORY[1:])
OTHER_ANSWER = (HISTORY[0], answer(THOUGHT, Text("other")), HISTORY[2])
NO_THOUGHT = (HISTORY[0], answer(LS), HISTORY[2])
CHANGED = "the client changed the model's answer, message 2 (assistant)"
LEFT_OUT = "the reasoning in the answer of turn 1 is left out"
BY_TEMPLATE = f"{LEFT_OUT}: the template renders it differently"
BY_CLIENT = f"{LEFT_OUT}: the client did not send it back, and the ledger does not have the turn"


@pytest.mark.parametrize(
    ("messages", "now", "at", "recall", "cause", "reason"),
    [
        (HISTORY, NEXT_DAY, 20, "first", "system", "system text 1 changed (a date or time)"),
        (HISTORY, OTHER_BASH, 20, "first", "tools", "the tool Bash changed"),
        (
            *(HISTORY, {"thinking": Thinking("disabled")}, 20, "first"),
            *("settings", "the setting thinking changed"),
        ),
        (EDITED, {}, 100, "first", "message", "message 1 (user) was edited"),
        (OTHER_ANSWER, {}, 201, "first", "answer", CHANGED),
        (HISTORY[::2], {}, 201, "first", "answer", CHANGED),
        (HISTORY, {}, 200, "template", "reasoning", BY_TEMPLATE),
        (NO_THOUGHT, {}, 200, "unknown", "reasoning", BY_CLIENT),
    ],
)
def test_cause_of_a_difference_is_named(
    bus: Bus,
    messages: Sequence[Message],
    now: dict[str, Any],
    at: int,
    recall: str,
    cause: str,
    reason: str,
) -> None:
    before = asked(user("Q"), **FIRST)
    found = compared(
        bus, asked(*messages, **{**FIRST, **now}), changed_at(at), before, recall=recall
    )
    assert (found.cause, found.reason, found.at, found.again) == (cause, reason, at, 204 - at)
    assert [change.kind for change in found.changes] == [cause] * (recall != "template")
    assert all(change.was != change.now for change in found.changes)


def test_extended_prompt_has_no_difference(bus: Bus) -> None:
    found = compared(bus, asked(*HISTORY), [*PROMPT, *OUTPUT, 77, 78])
    assert (found.extends, found.cause, found.at) == (True, "none", 204)
    assert (found.again, found.changes) == (0, [])


def test_another_image_of_the_same_size_is_a_difference(bus: Bus) -> None:
    for digit in "ab":
        shown = Media("image", "image/png", 9, hash=digit * 40, width=1, height=1)
        question = asked(Message("user", [Text("Q"), shown]))
        turn = bus.begin(question, PROMPT, images=[PromptImage(shown.hash, at=20, tokens=4)])
    found = bus.fold.turns[turn].difference
    assert found is not None
    assert (found.extends, found.cause, found.at) == (False, "message", 20)


def test_without_tokens_the_messages_decide(bus: Bus) -> None:
    bus.turn(asked(user("Q")), [], [], LS)
    found = difference(bus, asked(*NO_THOUGHT), [])
    assert (found.extends, found.at) == (True, None)
    more = (*NO_THOUGHT, answer(Text("x")), user("B"))
    edited = difference(bus, asked(*more, system=[Text("New.")]), [])
    assert (edited.cause, edited.extends) == ("system", False)
    assert "tokens unknown" in edited.reason
