"""Why a prompt departs from the one before it: each cause from the messages that it leaves on the
bus."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Reasoning,
    Text,
    Thinking,
    ToolSpec,
)
from schemas.frames import PromptImage
from tests.tools.inspector.by_hand import TOOLS, Bus, answer, asked, result, user
from turnwire_tools.inspector.fold import Fold
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
    found = bus.turn(now, ids, [5], Text("x"), **more).difference
    assert found is not None
    return found


def changed_at(at: int) -> list[int]:
    """The first prompt and its answer with other tokens from a place on."""
    return [*[*PROMPT, *OUTPUT][:at], *range(9000, 9200)]


def test_an_extended_prompt_has_no_difference(bus: Bus) -> None:
    found = compared(bus, asked(*HISTORY), [*PROMPT, *OUTPUT, 77, 78])
    assert (found.extends, found.cause, found.at, found.again, found.changes) == (
        True,
        "none",
        204,
        0,
        [],
    )


def test_the_same_prompt_again_is_another_try(bus: Bus) -> None:
    found = compared(bus, asked(user("Q")), PROMPT)
    assert (found.extends, found.cause, found.at) == (False, "none", 200)
    assert "another try" in found.reason


def test_another_image_of_the_same_size_is_a_difference(bus: Bus) -> None:
    for digit in "ab":
        shown = Media("image", "image/png", 9, hash=digit * 40, width=1, height=1)
        question = asked(Message("user", [Text("Q"), shown]))
        turn = bus.begin(question, PROMPT, images=[PromptImage(shown.hash, at=20, tokens=4)])
    found = bus.fold.turns[turn].difference
    assert found is not None
    assert (found.extends, found.cause, found.at) == (False, "message", 20)


@pytest.mark.parametrize(
    ("now", "cause", "reason"),
    [
        (
            {"system": [Text("You are an agent. It is 2026-01-02.")]},
            "system",
            "system text 1 changed (a date or time)",
        ),
        (
            {"system": [Text("You are another agent. It is 2026-01-01.")]},
            "system",
            "system text 1 changed",
        ),
        ({"tools": [*TOOLS, ToolSpec("Grep")]}, "tools", "the tool list changed"),
        ({"tools": TOOLS[::-1]}, "tools", "the order of the tools changed"),
        (
            {"tools": [replace(TOOLS[0], description="Runs it."), TOOLS[1]]},
            "tools",
            "the tool Bash changed",
        ),
        ({"thinking": Thinking("disabled")}, "settings", "the setting thinking changed"),
    ],
)
def test_change_before_the_messages_is_the_cause(
    bus: Bus, now: dict[str, Any], cause: str, reason: str
) -> None:
    fixed: dict[str, Any] = {"system": [Text("You are an agent. It is 2026-01-01.")]}
    found = compared(
        bus, asked(*HISTORY, **{**fixed, **now}), changed_at(20), asked(user("Q"), **fixed)
    )
    assert (found.cause, found.reason, found.at, found.again) == (cause, reason, 20, 184)
    assert [change.kind for change in found.changes] == [cause]
    assert found.changes[0].was != found.changes[0].now


@pytest.mark.parametrize(
    ("turns", "cause", "reason"),
    [
        ((user("Edited"), *HISTORY[1:]), "message", "message 1 (user) was edited"),
        (
            (HISTORY[0], answer(THOUGHT, Text("other")), HISTORY[2]),
            "answer",
            "the client changed the model's answer",
        ),
        ((HISTORY[0], HISTORY[2]), "answer", "the client changed the model's answer"),
    ],
)
def test_a_changed_history_is_the_cause(
    bus: Bus, turns: tuple[Message, ...], cause: str, reason: str
) -> None:
    at = 100 if cause == "message" else 201
    found = compared(bus, asked(*turns), changed_at(at))
    assert (found.cause, found.at, found.again) == (cause, at, 204 - at)
    assert found.reason.startswith(reason)


def test_a_shorter_history_is_the_cause(bus: Bus) -> None:
    bus.turn(asked(*HISTORY), PROMPT, OUTPUT, Text("There is a.txt."))
    found = bus.turn(
        asked(user("Q"), answer(Text("There is a.txt."))), changed_at(50), [5], Text("x")
    ).difference
    assert found is not None
    assert (found.cause, found.changes[0].was, found.changes[0].now) == (
        "history",
        "3 messages",
        "2 messages",
    )


def test_reasoning_that_the_template_drops_is_the_cause(bus: Bus) -> None:
    found = compared(bus, asked(*HISTORY), changed_at(200), recall="template")
    assert (found.cause, found.again, found.changes) == ("reasoning", 4, [])
    assert (
        found.reason
        == "the reasoning in the answer of turn 1 is left out: the template renders it differently"
    )


def test_reasoning_that_the_client_drops_is_named(bus: Bus) -> None:
    found = compared(
        bus, asked(HISTORY[0], answer(LS), HISTORY[2]), changed_at(200), recall="unknown"
    )
    assert found.cause == "reasoning"
    assert "the client did not send it back" in found.reason
    assert [(change.kind, change.where) for change in found.changes] == [
        ("reasoning", "message 2 (assistant)")
    ]


def test_another_tokenization_is_the_cause(bus: Bus) -> None:
    bus.turn(asked(user("Q")), PROMPT, OUTPUT, LS)
    history = (user("Q"), answer(LS), result(LS, "a.txt"))
    found = bus.turn(asked(*history), changed_at(203), [5], Text("x"), recall="unknown").difference
    assert found is not None
    assert (found.cause, found.at, found.again) == ("tokenization", 203, 1)
    assert "the ledger does not have the turn" in found.reason


def test_billing_headers_are_not_a_change(bus: Bus) -> None:
    def system(number: int) -> list[Text]:
        return [
            Text(f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli;"),
            Text("Agent."),
        ]

    found = compared(
        bus, asked(*HISTORY, system=system(2)), changed_at(201), asked(user("Q"), system=system(1))
    )
    assert (found.cause, "system" in {change.kind for change in found.changes}) == (
        "reasoning",
        True,
    )
    assert found.changes[0].where == "system text 1"  # nothing else changed


def test_without_tokens_the_messages_decide(bus: Bus) -> None:
    bus.turn(asked(user("Q")), [], [], LS)
    history = (user("Q"), answer(LS), result(LS, "a.txt"))
    found = bus.turn(asked(*history), [], [], Text("x")).difference
    assert found is not None
    assert (found.extends, found.at) == (True, None)
    edited = bus.turn(
        asked(*history, answer(Text("x")), user("B"), system=[Text("New.")]), [], [], Text("y")
    ).difference
    assert edited is not None
    assert (edited.cause, edited.extends) == ("system", False)
    assert "tokens unknown" in edited.reason


def test_a_tokenizer_shows_the_place() -> None:
    bus = Bus(Fold(decode=lambda ids: " ".join(map(str, ids))))
    found = compared(bus, asked(*HISTORY), changed_at(150))
    assert found.was.split()[:10] == [str(1142 + at) for at in range(10)]
    assert found.now.split()[7:10] == ["1149", "9000", "9001"]
