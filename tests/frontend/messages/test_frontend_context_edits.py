"""Tests `context_management`: which thinking and which tool results of earlier turns stay."""

import json
from typing import Any

import msgspec
import pytest

from schemas.conversation import Call, Conversation, Message, Reasoning, Result, Text
from services.frontend.apis.messages.context_edits import CLEARED
from services.frontend.apis.messages.preparation import apply_context_edits
from services.frontend.apis.messages.request import MessagesRequest
from services.frontend.turns.interfaces import Admitted
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


def managed(*edits: Json) -> Json:
    """The talk, with these context edits."""
    return messages(*TALK, context_management={"edits": [*edits]})


def thoughts(messages: list[Message]) -> list[str | None]:
    return [
        part.text for message in messages for part in message.parts if isinstance(part, Reasoning)
    ]


ALL = ["a1", "a2", "b1", "d1"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ({"keep": "all"}, ALL),
        ({}, ["d1"]),
        ({"keep": block("thinking_turns", value=2)}, ["b1", "d1"]),
        ({"keep": block("thinking_turns", value=99)}, ALL),
    ],
)
def test_last_turns_keep_their_thinking(keep: Json, left: list[str]) -> None:
    asked = MESSAGES.parse(managed(block(CLEAR, **keep)))
    assert thoughts(asked.conversation.messages) == left
    assert asked.conversation.thinking.history == "keep"
    assert asked.edits is not None


def test_only_a_message_of_nothing_but_thinking_is_dropped() -> None:
    asked = MESSAGES.parse(managed(block(CLEAR)))
    roles = "user assistant tool assistant user assistant user user assistant tool"
    assert [message.role for message in asked.conversation.messages] == roles.split()


def test_other_edits_are_accepted_without_effect() -> None:
    others = [
        block(CLEAR_TOOLS, trigger=block("tool_uses", value=9)),
        block("compact_20260112"),
        block("to_come_20990101", keep="some"),
    ]
    asked = MESSAGES.parse(managed(*others)).conversation
    assert asked == MESSAGES.read(*TALK, context_management=None)
    assert asked.thinking.history == "default"


LONG = "seen " * 40


def used(number: int, name: str = "look") -> list[Json]:
    use = tool_use(f"t{number}", name, input={"at": number})
    return [assistant(use), user(tool_result(f"t{number}", LONG, is_error=False))]


WORK = [USER, *used(1), *used(2, "edit"), *used(3), *used(4), *used(5)]


def cleaning(**edit: Any) -> Json:
    """The work, with old results cleared."""
    edits = [block(CLEAR, keep="all"), block(CLEAR_TOOLS, **edit)]
    return messages(*WORK, context_management={"edits": edits})


async def by_length(conversation: Conversation) -> int:
    return len(json.dumps(msgspec.to_builtins(conversation.messages)))


class ByLength(ModelAccess):
    def __init__(self, counted: list[Conversation]) -> None:
        self.counted = counted

    async def count(self, conversation: Conversation, *, charge: bool = False) -> int:
        self.counted.append(conversation)
        return await by_length(conversation)


async def after(counted: list[Conversation] | None = None, **edit: Any) -> MessagesRequest:
    model = ByLength([] if counted is None else counted)
    return await apply_context_edits(MESSAGES.parse(cleaning(**edit)), model)


def results_of(conversation: Conversation) -> list[Result]:
    return [
        part
        for message in conversation.messages
        for part in message.parts
        if isinstance(part, Result)
    ]


def cleared_results(asked: MessagesRequest) -> list[str]:
    """The ids of calls whose result is not the original one."""
    return [
        result.call_id for result in results_of(asked.conversation) if result.parts != [Text(LONG)]
    ]


def cleared_calls(asked: MessagesRequest) -> list[str]:
    """The ids of calls without arguments."""
    parts = [part for message in asked.conversation.messages for part in message.parts]
    calls = [part for part in parts if isinstance(part, Call)]
    return [call.call_id for call in calls if call.arguments == "{}"]


ALWAYS = block("input_tokens", value=1)


def uses(value: int) -> Json:
    return block("tool_uses", value=value)


def least(value: int) -> Json:
    return block("input_tokens", value=value)


@pytest.mark.parametrize(
    ("edit", "cleared"),
    [
        ({"trigger": ALWAYS}, ["t1", "t2"]),
        ({"trigger": ALWAYS, "keep": uses(0)}, ["t1", "t2", "t3", "t4", "t5"]),
        ({"trigger": ALWAYS, "exclude_tools": ["edit"]}, ["t1"]),
        ({"trigger": uses(4)}, ["t1", "t2"]),
        ({"trigger": ALWAYS, "clear_at_least": least(100)}, ["t1", "t2"]),
    ],
)
async def test_old_results_are_cleared(edit: Json, cleared: list[str]) -> None:
    asked = await after(**edit)
    assert cleared_results(asked) == cleared
    assert results_of(asked.conversation)[0].parts == [Text(CLEARED)]
    assert cleared_calls(asked) == []
    plain = MESSAGES.parse(cleaning()).conversation
    saved = await by_length(plain) - await by_length(asked.conversation)
    assert asked.edits is not None
    assert asked.edits.applied == [
        block(CLEAR_TOOLS, cleared_tool_uses=len(cleared), cleared_input_tokens=saved)
    ]
    assert asked.edits.original_tokens == await by_length(plain)
    errors = [result.is_error for result in results_of(asked.conversation)]
    assert errors == [False] * 5


@pytest.mark.parametrize(
    "edit",
    [
        {"trigger": uses(5)},
        {"trigger": ALWAYS, "keep": uses(5)},
        {"trigger": ALWAYS, "exclude_tools": ["look", "edit"]},
        {"trigger": ALWAYS, "clear_at_least": least(10_000)},
    ],
)
async def test_nothing_is_cleared_below_the_limits(edit: Json) -> None:
    asked = await after(**edit)
    assert asked.conversation == MESSAGES.parse(cleaning()).conversation
    assert asked.edits is not None
    assert asked.edits.applied == []


async def test_arguments_are_cleared_on_request() -> None:
    for inputs, empty in ((True, ["t1", "t2"]), (["edit"], ["t2"]), (False, [])):
        asked = await after(trigger=ALWAYS, clear_tool_inputs=inputs)
        assert cleared_calls(asked) == empty


async def test_tokens_are_counted_only_if_something_can_be_cleared() -> None:
    counted: list[Conversation] = []
    await after(counted, keep=uses(9))
    await after(counted, trigger=uses(9))
    assert counted == []


class Counting(FakeGateway):
    async def count(self, admitted: Admitted) -> int:
        return await by_length(admitted.conversation)


async def test_answer_reports_the_cleared_thinking() -> None:
    from anthropic import AsyncAnthropic
    from anthropic.types.beta import BetaClearThinking20251015EditResponse

    async with serving(Counting()) as served:
        client = AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0)
        body: Any = managed(block(CLEAR, keep=block("thinking_turns", value=2)))
        message = await client.beta.messages.create(**body)
    assert message.context_management is not None
    (edit,) = message.context_management.applied_edits
    assert isinstance(edit, BetaClearThinking20251015EditResponse)
    assert edit.cleared_thinking_turns == 1
    assert edit.cleared_input_tokens > 0
