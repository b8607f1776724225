"""`context_management`: which thinking of earlier turns stays."""

import json
from typing import Any

import pytest

from schemas.conversation import Reasoning, Turn
from schemas.errors import Invalid
from services.frontend.apis.messages.request import MessagesAsk, parse

Json = dict[str, Any]
CLEAR = "clear_thinking_20251015"


def thought(name: str, *others: Json) -> Json:
    return {"role": "assistant", "content": [{"type": "thinking", "thinking": name, "signature": "s"}, *others]}


def call(name: str) -> Json:
    return {"type": "tool_use", "id": name, "name": "look", "input": {}}


def result(name: str) -> Json:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": "seen"}]}


SAID: Json = {"type": "text", "text": "done"}
HI: Json = {"role": "user", "content": "hi"}
TALK: list[Json] = [
    HI,
    thought("a1", call("c1")),
    result("c1"),
    thought("a2", SAID),
    HI,
    {"role": "assistant", "content": "no thought"},
    HI,
    thought("b1"),
    HI,
    thought("d1", call("c2")),
    result("c2"),
]


def ask(keep: Any = None, *edits: Json) -> MessagesAsk:
    edit = {"type": CLEAR} if keep is None else {"type": CLEAR, "keep": keep}
    body = {"model": "m", "max_tokens": 9, "messages": TALK, "context_management": {"edits": [*edits, edit]}}
    return parse(json.dumps(body).encode(), {})


def thoughts(turns: list[Turn]) -> list[str | None]:
    return [part.text for turn in turns for part in turn.parts if isinstance(part, Reasoning)]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ("all", ["a1", "a2", "b1", "d1"]),
        ({"type": "all"}, ["a1", "a2", "b1", "d1"]),
        ({"type": "thinking_turns", "value": 1}, ["d1"]),
        (None, ["d1"]),
        ({"type": "thinking_turns", "value": 2}, ["b1", "d1"]),
        ({"type": "thinking_turns", "value": 3}, ["a1", "a2", "b1", "d1"]),
        ({"type": "thinking_turns", "value": 99}, ["a1", "a2", "b1", "d1"]),
    ],
)
def test_so_many_turns_keep_their_thinking(keep: Any, left: list[str]) -> None:
    told = ask(keep)
    assert thoughts(told.conversation.turns) == left
    assert told.conversation.thinking.history == "keep"
    assert told.context_management


def test_a_message_that_was_nothing_but_thinking_is_gone_with_it() -> None:
    roles = [turn.role for turn in ask().conversation.turns]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "user", "user", "assistant", "tool"]


def test_other_edits_are_accepted_and_change_nothing() -> None:
    others: list[Json] = [
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 1}, "keep": {"x": 1}},
        {"type": "compact_20260112"},
        {"type": "to_come_20990101", "keep": "some"},
    ]
    body = {"model": "m", "max_tokens": 9, "messages": TALK, "context_management": {"edits": others}}
    told = parse(json.dumps(body).encode(), {}).conversation
    plain = parse(json.dumps({**body, "context_management": None}).encode(), {}).conversation
    assert told == plain
    assert told.thinking.history == "default"


@pytest.mark.parametrize(
    "keep", ["some", {"type": "thinking_turns"}, {"type": "thinking_turns", "value": 0}, {"type": "x"}, 3]
)
def test_what_keep_cannot_be(keep: Any) -> None:
    with pytest.raises(Invalid, match=rf"^context_management.edits.{CLEAR}.keep: Input should be 'all' or a number"):
        ask(keep)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"edits": 1}, "context_management.edits: Input should be a valid list"),
        ([], "context_management: Input should be a valid dictionary"),
        ({"edits": [5]}, "context_management.edits.0: Input should be a valid dictionary"),
        ({"edits": [{}]}, "context_management.edits.0: Unable to extract tag using discriminator 'type'"),
    ],
)
def test_what_the_field_cannot_be(value: Any, message: str) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": TALK, "context_management": value}
    with pytest.raises(Invalid) as caught:
        parse(json.dumps(body).encode(), {})
    assert caught.value.info.message == message
