"""Tests `context_management`: which thinking and which tool results of earlier turns stay."""

import json
from typing import Any

import msgspec

from schemas.conversation import Call, Conversation, Reasoning, Result, Text
from services.frontend.apis.messages.context_edits import CLEARED
from services.frontend.apis.messages.context_management import apply_context_edits
from services.frontend.apis.messages.request import MessagesRequest
from services.frontend.turns.turn_service import ModelAccess
from tests.kit.bodies import (
    MESSAGES,
    USER,
    Json,
    assistant,
    block,
    messages,
    text,
    tool_result,
    tool_use,
    user,
)
from tests.kit.every import Cases, for_rows
from tests.kit.frontend import FakeGateway, serving

CLEAR = "clear_thinking_20251015"
CLEAR_TOOLS = "clear_tool_uses_20250919"


def thought(name: str, *others: Json) -> Json:
    return assistant(block("thinking", thinking=name, signature="s"), *others)


TALK = [
    USER,
    thought("a1", tool_use("c1")),
    user(tool_result("c1")),
    thought("a2", text("done")),
    USER,
    assistant("no thought"),
    USER,
    thought("b1"),
    USER,
    thought("d1", tool_use("c2")),
    user(tool_result("c2")),
]
ALL = ["a1", "a2", "b1", "d1"]


def managed(*edits: Json) -> Json:
    """The talk, with these context edits."""
    return messages(*TALK, context_management={"edits": [*edits]})


@for_rows(
    [
        ({"keep": "all"}, ALL),
        ({}, ["d1"]),
        ({"keep": block("thinking_turns", value=2)}, ["b1", "d1"]),
    ]
)
def test_last_turns_keep_their_thinking(keep: Json, left: list[str]) -> None:
    asked = MESSAGES.parse(managed(block(CLEAR, **keep)))
    parts = [part for message in asked.conversation.messages for part in message.parts]
    assert [part.text for part in parts if isinstance(part, Reasoning)] == left
    assert asked.conversation.thinking.history == "keep"
    assert asked.edits is not None


def test_only_a_message_of_nothing_but_thinking_is_dropped() -> None:
    asked = MESSAGES.parse(managed(block(CLEAR)))
    roles = "user assistant tool assistant user assistant user user assistant tool"
    assert [message.role for message in asked.conversation.messages] == roles.split()
    unknown = MESSAGES.parse(managed(block("to_come_20990101", keep="some"))).conversation
    assert unknown == MESSAGES.read(*TALK, context_management=None)


LONG = "seen " * 40


def used(number: int, name: str = "look") -> list[Json]:
    use = tool_use(f"t{number}", name, input={"at": number})
    return [assistant(use), user(tool_result(f"t{number}", LONG, is_error=False))]


WORK = [USER, *used(1), *used(2, "edit"), *used(3), *used(4), *used(5)]


def length(conversation: Conversation) -> int:
    return len(json.dumps(msgspec.to_builtins(conversation.messages)))


class ByLength(ModelAccess):
    def __init__(self) -> None:
        pass

    async def count(self, conversation: Conversation, *, charge: bool = False) -> int:
        return length(conversation)


def cleaning(**edit: Any) -> MessagesRequest:
    """The work, with old results to be cleared."""
    edits = [block(CLEAR, keep="all"), block(CLEAR_TOOLS, **edit)]
    asked: MessagesRequest = MESSAGES.ask(*WORK, context_management={"edits": edits})
    return asked


ALWAYS = block("input_tokens", value=1)


def uses(value: int) -> Json:
    return block("tool_uses", value=value)


CLEARINGS: list[tuple[Json, list[str], list[str]]] = [
    ({"trigger": ALWAYS}, ["t1", "t2"], []),
    ({"trigger": ALWAYS, "keep": uses(0)}, ["t1", "t2", "t3", "t4", "t5"], []),
    ({"trigger": ALWAYS, "exclude_tools": ["edit"]}, ["t1"], []),
    ({"trigger": uses(4)}, ["t1", "t2"], []),
    ({"trigger": ALWAYS, "clear_tool_inputs": ["edit"]}, ["t1", "t2"], ["t2"]),
    ({"trigger": uses(5)}, [], []),
    ({"trigger": ALWAYS, "clear_at_least": block("input_tokens", value=10_000)}, [], []),
]
"""An edit, the results that it clears, and the calls without their arguments."""


async def test_old_results_are_cleared(cases: Cases) -> None:
    for edit, cleared, emptied in CLEARINGS:
        with cases.case(str(edit)):
            before = cleaning(**edit)
            after = await apply_context_edits(before, ByLength())
            parts = [part for message in after.conversation.messages for part in message.parts]
            results = {part.call_id: part for part in parts if isinstance(part, Result)}
            for id, result in results.items():
                assert result.parts == [Text(CLEARED if id in cleared else LONG)]
                assert result.is_error is False
            calls = [part for part in parts if isinstance(part, Call)]
            assert [call.call_id for call in calls if call.arguments == "{}"] == emptied
            saved = length(before.conversation) - length(after.conversation)
            done = block(CLEAR_TOOLS, cleared_tool_uses=len(cleared), cleared_input_tokens=saved)
            assert after.edits is not None
            assert after.edits.applied == ([done] if cleared else [])
            assert not cleared or after.edits.original_tokens == length(before.conversation)


async def test_answer_reports_the_cleared_thinking() -> None:
    async with serving(FakeGateway(size=length)) as served:
        body = managed(block(CLEAR, keep=block("thinking_turns", value=2)))
        reply = await served.post("/v1/messages", body)
    (edit,) = reply.json["context_management"]["applied_edits"]
    assert (edit["type"], edit["cleared_thinking_turns"]) == (CLEAR, 1)
    assert edit["cleared_input_tokens"] > 0
