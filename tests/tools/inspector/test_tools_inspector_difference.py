"""Why a prompt departs from the one before it: each cause from the messages that it leaves on the
bus."""

from collections.abc import Sequence
from typing import Any

import pytest

from schemas.conversation import Call, Conversation, Message, Reasoning, Text
from tests.tools.inspector.by_hand import TOOLS, Bus, answer, asked, result, user
from turnwire_tools.inspector.turns import Departure

LS = Call("toolu_1", "Bash", '{"command": "ls"}')
PROMPT = range(1000, 1200)
OUTPUT = [1, 2, 3, 4]
THOUGHT = Reasoning("I look.")
HISTORY = (user("Q"), answer(THOUGHT, LS), result(LS, "a.txt"))


def compared(bus: Bus, now: Conversation, ids: Sequence[int], **more: Any) -> Departure:
    """The difference of a second turn to a first one, which asks `Q` and gets a call."""
    bus.turn(asked(user("Q")), PROMPT, OUTPUT, THOUGHT, LS)
    return difference(bus, now, ids, **more)


def difference(bus: Bus, now: Conversation, ids: Sequence[int], **more: Any) -> Departure:
    found = bus.turn(now, ids, [5], Text("x"), **more).difference
    assert found is not None
    return found


def changed_at(at: int) -> list[int]:
    """The first prompt and its answer with other tokens from a place on."""
    return [*[*PROMPT, *OUTPUT][:at], *range(9000, 9200)]


NEW_DAY = {"system": [Text("You are an agent. It is 2026-01-02.")]}
EDITED = (user("Edited"), *HISTORY[1:])
OTHER_ANSWER = (HISTORY[0], answer(THOUGHT, Text("other")), HISTORY[2])
NO_THOUGHT = (HISTORY[0], answer(LS), HISTORY[2])


@pytest.mark.parametrize(
    ("messages", "now", "at", "cause", "reason"),
    [
        (HISTORY, NEW_DAY, 20, "system", "system text 1 changed"),
        (HISTORY, {"tools": TOOLS[1:]}, 20, "tools", "the tool list changed"),
        (EDITED, {}, 100, "message", "message 1 (user) was edited"),
        (OTHER_ANSWER, {}, 201, "answer", "the client changed the model's answer"),
        (NO_THOUGHT, {}, 200, "reasoning", "the client did not send it back"),
    ],
)
def test_cause_of_a_difference_is_named(
    bus: Bus, messages: Sequence[Message], now: dict[str, Any], at: int, cause: str, reason: str
) -> None:
    found = compared(bus, asked(*messages, **now), changed_at(at), recall="unknown")
    assert (found.cause, found.at, found.again) == (cause, at, 204 - at)
    assert reason in found.reason
    assert [change.kind for change in found.changes] == [cause]


def test_extended_prompt_has_no_difference(bus: Bus) -> None:
    found = compared(bus, asked(*HISTORY), [*PROMPT, *OUTPUT, 77, 78])
    assert (found.extends, found.cause, found.at) == (True, "none", 204)
    assert (found.again, found.changes) == (0, [])
