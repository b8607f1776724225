"""Tests `context_management`: which thinking and which tool results of earlier turns stay."""

import json
from typing import Any

import msgspec
import pytest
from anthropic import AsyncAnthropic
from anthropic.types.beta import (
    BetaClearThinking20251015EditResponse,
    BetaClearToolUses20250919EditResponse,
)

from schemas.conversation import Call, Conversation, Message, Reasoning, Result, Text
from schemas.errors import Invalid
from services.frontend.apis.messages.context_edits import CLEARED
from services.frontend.apis.messages.preparation import apply_context_edits
from services.frontend.apis.messages.request import MessagesRequest, parse
from services.frontend.turns.interfaces import Admitted
from services.frontend.turns.turn_service import ModelAccess
from tests.kit.frontend import MODEL, FakeGateway, serving

Json = dict[str, Any]
CLEAR = "clear_thinking_20251015"


def thought(name: str, *others: Json) -> Json:
    return {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": name, "signature": "s"}, *others],
    }


def call(name: str) -> Json:
    return {"type": "tool_use", "id": name, "name": "look", "input": {}}


def result(name: str) -> Json:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": name, "content": "seen"}],
    }


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


def ask(keep: Any = None, *edits: Json) -> MessagesRequest:
    edit = {"type": CLEAR} if keep is None else {"type": CLEAR, "keep": keep}
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": TALK,
        "context_management": {"edits": [*edits, edit]},
    }
    return parse(json.dumps(body).encode(), {})


def thoughts(messages: list[Message]) -> list[str | None]:
    return [
        part.text for message in messages for part in message.parts if isinstance(part, Reasoning)
    ]


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
def test_last_turns_keep_their_thinking(keep: Any, left: list[str]) -> None:
    asked = ask(keep)
    assert thoughts(asked.conversation.messages) == left
    assert asked.conversation.thinking.history == "keep"
    assert asked.edits is not None


def test_message_with_only_thinking_is_dropped() -> None:
    roles = [message.role for message in ask().conversation.messages]
    assert roles == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
        "user",
        "user",
        "assistant",
        "tool",
    ]


def test_other_edits_are_accepted_without_effect() -> None:
    others: list[Json] = [
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 9}},
        {"type": "compact_20260112"},
        {"type": "to_come_20990101", "keep": "some"},
    ]
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": TALK,
        "context_management": {"edits": others},
    }
    asked = parse(json.dumps(body).encode(), {}).conversation
    plain = parse(json.dumps({**body, "context_management": None}).encode(), {}).conversation
    assert asked == plain
    assert asked.thinking.history == "default"


@pytest.mark.parametrize(
    "keep",
    ["some", {"type": "thinking_turns"}, {"type": "thinking_turns", "value": 0}, {"type": "x"}, 3],
)
def test_invalid_keep_is_refused(keep: Any) -> None:
    with pytest.raises(
        Invalid, match=rf"^context_management.edits.{CLEAR}.keep: Input should be 'all' or a number"
    ):
        ask(keep)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"edits": 1}, "context_management.edits: Input should be a valid list"),
        ([], "context_management: Input should be a valid dictionary"),
        ({"edits": [5]}, "context_management.edits.0: Input should be a valid dictionary"),
        (
            {"edits": [{}]},
            "context_management.edits.0: Unable to extract tag using discriminator 'type'",
        ),
    ],
)
def test_invalid_context_management_is_refused(value: Any, message: str) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": TALK, "context_management": value}
    with pytest.raises(Invalid) as caught:
        parse(json.dumps(body).encode(), {})
    assert caught.value.info.message == message


LONG = "seen " * 40


def used(number: int, name: str = "look") -> list[Json]:
    use = {"type": "tool_use", "id": f"t{number}", "name": name, "input": {"at": number}}
    seen = {"type": "tool_result", "tool_use_id": f"t{number}", "content": LONG, "is_error": False}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [seen]}]


WORK = [HI, *used(1), *used(2, "edit"), *used(3), *used(4), *used(5)]


def cleaning(**edit: Any) -> Json:
    managed = {
        "edits": [{"type": CLEAR, "keep": "all"}, {"type": "clear_tool_uses_20250919", **edit}]
    }
    return {"model": MODEL, "max_tokens": 9, "messages": WORK, "context_management": managed}


async def by_length(conversation: Conversation) -> int:
    return len(json.dumps(msgspec.to_builtins(conversation.messages)))


class ByLength(ModelAccess):
    def __init__(self, counted: list[Conversation]) -> None:
        self.counted = counted

    async def count(self, conversation: Conversation) -> int:
        self.counted.append(conversation)
        return await by_length(conversation)


async def after(counted: list[Conversation] | None = None, **edit: Any) -> MessagesRequest:
    model = ByLength([] if counted is None else counted)
    return await apply_context_edits(parse(json.dumps(cleaning(**edit)).encode(), {}), model)


def story(asked: MessagesRequest) -> dict[str, tuple[str, bool]]:
    """The arguments of each call, and whether it has a result, by call id."""
    parts = [part for message in asked.conversation.messages for part in message.parts]
    whole = {part.call_id: part.parts == [Text(LONG)] for part in parts if isinstance(part, Result)}
    return {
        part.call_id: (part.arguments, whole[part.call_id])
        for part in parts
        if isinstance(part, Call)
    }


ALWAYS = {"type": "input_tokens", "value": 1}


@pytest.mark.parametrize(
    ("edit", "cleared"),
    [
        ({"trigger": ALWAYS}, ["t1", "t2"]),
        ({"trigger": ALWAYS, "keep": {"type": "tool_uses", "value": 1}}, ["t1", "t2", "t3", "t4"]),
        (
            {"trigger": ALWAYS, "keep": {"type": "tool_uses", "value": 0}},
            ["t1", "t2", "t3", "t4", "t5"],
        ),
        ({"trigger": ALWAYS, "exclude_tools": ["edit"]}, ["t1"]),
        ({"trigger": {"type": "tool_uses", "value": 4}}, ["t1", "t2"]),
        (
            {"trigger": ALWAYS, "clear_at_least": {"type": "input_tokens", "value": 100}},
            ["t1", "t2"],
        ),
    ],
)
async def test_old_results_are_cleared(edit: Json, cleared: list[str]) -> None:
    asked = await after(**edit)
    seen = story(asked)
    assert [name for name, (_, whole) in seen.items() if not whole] == cleared
    assert all(arguments != "{}" for arguments, _ in seen.values())
    plain = parse(json.dumps(cleaning()).encode(), {}).conversation
    saved = await by_length(plain) - await by_length(asked.conversation)
    applied = {
        "type": "clear_tool_uses_20250919",
        "cleared_tool_uses": len(cleared),
        "cleared_input_tokens": saved,
    }
    assert asked.edits is not None
    assert asked.edits.applied == [applied]
    assert asked.edits.original_tokens == await by_length(plain)
    errors = [
        part.is_error
        for message in asked.conversation.messages
        for part in message.parts
        if isinstance(part, Result)
    ]
    assert errors == [False] * 5


@pytest.mark.parametrize(
    "edit",
    [
        {},
        {"trigger": {"type": "tool_uses", "value": 5}},
        {"trigger": ALWAYS, "keep": {"type": "tool_uses", "value": 5}},
        {"trigger": ALWAYS, "exclude_tools": ["look", "edit"]},
        {"trigger": ALWAYS, "clear_at_least": {"type": "input_tokens", "value": 10_000}},
    ],
)
async def test_nothing_is_cleared_below_the_limits(edit: Json) -> None:
    asked = await after(**edit)
    assert asked.conversation == parse(json.dumps(cleaning()).encode(), {}).conversation
    assert asked.edits is not None
    assert asked.edits.applied == []


@pytest.mark.parametrize(
    ("inputs", "empty"), [(True, ["t1", "t2"]), (["edit"], ["t2"]), (False, [])]
)
async def test_arguments_are_cleared_on_request(inputs: Any, empty: list[str]) -> None:
    asked = await after(trigger=ALWAYS, clear_tool_inputs=inputs)
    assert [name for name, (arguments, _) in story(asked).items() if arguments == "{}"] == empty


async def test_tokens_are_counted_only_if_something_can_be_cleared() -> None:
    counted: list[Conversation] = []
    await after(counted, keep={"type": "tool_uses", "value": 9})
    await after(counted, trigger={"type": "tool_uses", "value": 9})
    assert counted == []


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        ({"keep": 3}, "context_management.edits.clear_tool_uses_20250919.keep"),
        (
            {"clear_at_least": {"type": "tool_uses", "value": 3}},
            "context_management.edits.clear_tool_uses_20250919.clear_at_least",
        ),
        (
            {"trigger": {"type": "input_tokens", "value": -3}},
            "context_management.edits.1.trigger.value",
        ),
        ({"clear_tool_inputs": "all"}, "context_management.edits.1.clear_tool_inputs"),
    ],
)
def test_invalid_tool_edit_is_refused(edit: Json, place: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(json.dumps(cleaning(**edit)).encode(), {})
    assert caught.value.info.param == place


class Counting(FakeGateway):
    async def count(self, admitted: Admitted) -> int:
        return await by_length(admitted.conversation)


async def test_sdk_reads_the_cleared_tool_uses() -> None:
    gateway = Counting()
    async with serving(gateway) as served:
        client = AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0)
        body: Any = cleaning(trigger=ALWAYS)
        async with client.beta.messages.stream(**body) as stream:
            streamed = await stream.get_final_message()
        whole = await client.beta.messages.create(**body)
        count = {name: body[name] for name in ("model", "messages", "context_management")}
        size = await client.beta.messages.count_tokens(**count)
    for message in (streamed, whole):
        assert message.context_management is not None
        (edit,) = message.context_management.applied_edits
        assert isinstance(edit, BetaClearToolUses20250919EditResponse)
        assert edit.cleared_tool_uses == 2
    assert size.context_management is not None
    assert (
        size.context_management.original_input_tokens
        == size.input_tokens + edit.cleared_input_tokens
    )
    for turn in gateway.turns:
        results = [
            part.parts
            for each in turn.conversation.messages
            for part in each.parts
            if isinstance(part, Result)
        ]
        assert results == [[Text(CLEARED)]] * 2 + [[Text(LONG)]] * 3


async def test_answer_reports_the_cleared_thinking() -> None:
    async with serving(Counting()) as served:
        client = AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0)
        messages: Any = TALK
        edits: Any = {"edits": [{"type": CLEAR, "keep": {"type": "thinking_turns", "value": 2}}]}
        message = await client.beta.messages.create(
            model=MODEL, max_tokens=9, messages=messages, context_management=edits
        )
    assert message.context_management is not None
    (edit,) = message.context_management.applied_edits
    assert isinstance(edit, BetaClearThinking20251015EditResponse)
    assert edit.cleared_thinking_turns == 1
    assert edit.cleared_input_tokens > 0
