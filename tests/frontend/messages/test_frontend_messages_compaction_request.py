"""Tests `compaction: {"type": "summarize"}` over HTTP: the answer is one signed block, with which later
requests begin."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from schemas.conversation import Message, Text, ToolChoice
from schemas.events import FinishReason, TurnEvent
from services.frontend.turns.compaction import SUMMARIZE
from tests.kit.answers import events as stream_events
from tests.kit.bodies import (
    USER,
    Json,
    assistant,
    block,
    message,
    messages,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.bodies import text as words
from tests.kit.events import finish, reasoning, text
from tests.kit.every import Cases
from tests.kit.frontend import Served, in_turn, serving

if TYPE_CHECKING:
    from anthropic.types.beta import BetaMessage

SUMMARY: list[TurnEvent] = [*reasoning(0, "Hm."), *text(1, "The user wants tea."), finish(2)]
ANSWER: list[TurnEvent] = [*text(0, "Here it is."), finish(1)]
TALK = [user("I want tea."), assistant("Which?"), user("Green.")]
SUMMARIZE_IT = block("summarize")


async def summarized(
    served: Served, *history: Any, stream: bool = False, **fields: Any
) -> "BetaMessage":
    """The SDK's message for a request with `compaction`."""
    from anthropic import AsyncAnthropic

    body: Any = messages(*(history or TALK), max_tokens=99) | fields
    body.setdefault("compaction", SUMMARIZE_IT)
    async with AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client:
        if not stream:
            made: BetaMessage = await client.beta.messages.create(**body)
            return made
        async with client.beta.messages.stream(**body) as streaming:
            return await streaming.get_final_message()


def sent(answer: "BetaMessage") -> Json:
    """The message as the SDK sends it back."""
    return assistant(*(block.to_dict() for block in answer.content))


async def error(served: Served, *history: Any, **fields: Any) -> tuple[str, str | None]:
    """The message and the code of a refusal."""
    reply = await served.post("/v1/messages", messages(*history, **fields))
    found = reply.json["error"]
    assert (reply.status, found["type"]) == (400, "invalid_request_error")
    return found["message"], found.get("details", {}).get("error_code")


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_is_one_signed_block_with_which_later_requests_begin(stream: bool) -> None:
    gateway = in_turn(SUMMARY, ANSWER)
    head: Json = {"system": "Be kind.", "tools": [tool()]}
    async with serving(gateway) as served:
        answer = await summarized(served, stream=stream, **head)
        (only,) = answer.content
        document = only.to_dict()
        assert (document["type"], document["content"]) == ("compaction", "The user wants tea.")
        assert document["signature"]
        assert document["tool_changes"] == []
        assert answer.stop_reason == "compaction"
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (0, 0)
        if not stream:  # the SDK's accumulator leaves the iterations out
            assert answer.usage.iterations is not None
            (iteration,) = answer.usage.iterations
            assert (iteration.type, iteration.output_tokens) == ("compaction", 74)
        history = [sent(answer), assistant("Green it is."), user("Thanks.")]
        await summarized(served, *history, stream=stream, compaction=None, **head)
    asked, later = gateway.conversations
    assert asked.messages[-1] == Message("user", [Text(SUMMARIZE)])
    assert (asked.tool_choice, asked.sampling.max_tokens) == (ToolChoice("none"), 99)
    assert later.messages[0] == Message("user", [Text("The user wants tea.")])
    assert [message.role for message in later.messages] == ["user", "assistant", "user"]
    assert (later.system, later.tools) == (asked.system, asked.tools)


async def test_block_is_whole_in_its_first_event() -> None:
    async with serving(in_turn(SUMMARY)) as served:
        body = messages(*TALK, compaction=SUMMARIZE_IT, stream=True)
        found = stream_events((await served.post("/v1/messages", body)).body)
    kinds = [event["type"] for event in found if event["type"] != "ping"]
    assert kinds[1:3] == ["content_block_start", "content_block_stop"]
    assert found[1]["content_block"]["content"] == "The user wants tea."
    assert kinds[3:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("instructions", ["Keep names.", " ", None])
async def test_instructions_replace_the_servers_own(instructions: str | None) -> None:
    gateway = in_turn(SUMMARY)
    async with serving(gateway) as served:
        await summarized(served, compaction=block("summarize", instructions=instructions))
    expected = "Keep names." if instructions == "Keep names." else SUMMARIZE
    assert gateway.conversations[0].messages[-1] == Message("user", [Text(expected)])


@pytest.mark.parametrize("stream", [False, True])
async def test_missing_summary_is_an_answer_without_content(stream: bool) -> None:
    cut: list[TurnEvent] = [*text(0, "The us"), finish(1, FinishReason.LENGTH)]
    silent: list[TurnEvent] = [*reasoning(0, "Hm."), finish(1)]
    async with serving(in_turn(cut, silent)) as served:
        for reason in ("max_tokens", "end_turn"):
            answer = await summarized(served, stream=stream)
            assert (answer.content, answer.stop_reason) == ([], reason)


def definition(name: str) -> Json:
    return block("tool_definition", definition=tool(name, description="New."))


def changes(*blocks: Json) -> Json:
    return message("system", *blocks)


def addition(name: str) -> Json:
    return block("tool_addition", tool=block("tool_reference", name=name))


def removal(name: str) -> Json:
    return block("tool_removal", tool=block("tool_reference", name=name))


async def test_block_has_the_changes_of_tools_that_hold_at_the_end() -> None:
    gateway = in_turn(SUMMARY, SUMMARY, ANSWER)
    tools = [tool(), tool("late", defer_loading=True), tool("gone")]
    new = block("tool_addition", tool=definition("new"))
    brief = block("tool_addition", tool=definition("brief"))
    history = [
        USER,
        changes(new, removal("gone"), removal("look"), brief),
        assistant("So."),
        changes(addition("late"), addition("look"), removal("brief"), removal("new")),
        user("Go."),
        changes(addition("new")),
    ]
    async with serving(gateway) as served:
        first = await summarized(served, *history, tools=tools)
        found = first.content[0].to_dict()["tool_changes"]
        assert found == [removal("gone"), addition("late"), addition("look"), new]
        # The next block has these changes again, and those since.
        following = [sent(first), user("On."), changes(addition("gone"))]
        second = await summarized(served, *following, tools=tools)
        assert second.content[0].to_dict()["tool_changes"] == [*found[1:], addition("gone")]
        assert "gone" in {spec.name for spec in gateway.conversations[1].tools}
        await summarized(served, sent(second), USER, tools=tools, compaction=None)
    names = {spec.name: spec.deferred for spec in gateway.conversations[-1].tools}
    assert names == {"look": False, "late": False, "gone": False, "new": False}


BOTH_CALLS = [
    USER,
    assistant(tool_use("toolu_1"), tool_use("toolu_2")),
    user(tool_result("toolu_1")),
]
LAST_CALL = [USER, assistant(tool_use())]
REFUSED: list[tuple[str, str | None, Json]] = [
    ("context_management: cannot be used", None, messages(context_management={"edits": []})),
    ("stop_sequences: cannot be used", None, messages(stop_sequences=["x"])),
    (
        "output_config.format: cannot be used",
        None,
        messages(output_config={"format": block("json_schema", schema={"type": "object"})}),
    ),
    (
        "tool_choice: cannot be used",
        None,
        messages(tools=[tool()], tool_choice=block("any")),
    ),
    ("compaction: there are no", "compaction_nothing_to_summarize", messages() | {"messages": []}),
    (
        "compaction: there are no",
        "compaction_nothing_to_summarize",
        messages(message("system", "Be kind.")),
    ),
    ("compaction: the last", "compaction_incomplete_turn", messages(*LAST_CALL)),
    ("compaction: the last", "compaction_incomplete_turn", messages(*BOTH_CALLS)),
    (
        "compaction: the last",
        "compaction_incomplete_turn",
        messages(*LAST_CALL, message("system", "Be kind.")),
    ),
]


async def test_request_that_cannot_be_summarized_is_refused(cases: Cases) -> None:
    async with serving() as served:
        for expected, code, body in REFUSED:
            with cases.case(expected, body=body):
                reply = await served.post("/v1/messages", body | {"compaction": SUMMARIZE_IT})
                found = reply.json["error"]
                assert reply.status == 400
                assert found["message"].startswith(expected)
                assert found.get("details", {}).get("error_code") == code


async def test_finished_turns_of_all_kinds_are_summarized() -> None:
    ends: list[list[Json]] = [
        [USER, assistant("Done. ")],
        [USER, assistant(tool_use()), user(tool_result())],
        [*BOTH_CALLS[:2], user(tool_result("toolu_2"), tool_result("toolu_1"))],
        [USER, assistant("So."), changes(removal("look"))],
    ]
    async with serving(in_turn(*[SUMMARY] * len(ends))) as served:
        for history in ends:
            await summarized(served, *history, tools=[tool()])


async def test_kind_of_compaction_is_required() -> None:
    async with serving() as served:
        expected = "compaction: Unable to extract tag using discriminator 'type'"
        assert (await error(served, USER, compaction={}))[0] == expected


async def test_counting_ignores_the_field() -> None:
    async with serving() as served:
        for more in ({}, {"compaction": SUMMARIZE_IT}):
            reply = await served.post("/v1/messages/count_tokens", messages(*TALK, **more))
            assert reply.status == 200
        one, other = served.gateway.counted
    assert one == other


async def test_block_that_was_changed_or_moved_is_refused() -> None:
    async with serving(in_turn(SUMMARY, *[ANSWER] * 4)) as served:
        whole = sent(await summarized(served, USER, changes(removal("look")), tools=[tool()]))
        (good,) = whole["content"]

        async def fault(*history: Any, **fields: Any) -> str | None:
            return (await error(served, *history, **fields))[1]

        def altered(**members: Any) -> Json:
            return assistant(good | members)

        for content in ("Tea.", None):
            assert await fault(altered(content=content), USER) == "compaction_content_mismatch"
        assert await fault(altered(tool_changes=[]), USER) == "compaction_tool_changes_mismatch"
        signature = good["signature"][:-1] + ("0" if good["signature"][-1] != "0" else "1")
        assert await fault(altered(signature=signature), USER) == "compaction_signature_invalid"
        assert await fault(USER, whole, USER) == "compaction_block_misplaced"
        assert await fault(assistant(words("So."), good), USER) == "compaction_block_misplaced"
        assert await fault(whole, whole, USER) == "compaction_block_ambiguous"
        assert await fault(message("system", good), USER) == "compaction_block_misplaced"
        edit = {"edits": [block("compact_20260112")]}
        text, code = await error(served, whole, USER, context_management=edit)
        assert (text[:24], code) == ("context_management.edits", None)

        # As the first block of a user's message, reordered, and of another server.
        reordered = json.loads(json.dumps(good, sort_keys=True))
        for first in ([user(good, words("Go."))], [user(good), USER], [assistant(reordered), USER]):
            reply = await served.post("/v1/messages", messages(*first))
            assert reply.status == 200, reply.text
        foreign = assistant(block("compaction", content="Coffee.", signature="EuYB"))
        assert (await served.post("/v1/messages", messages(foreign, USER))).status == 200
    asked = [turn.conversation.messages for turn in served.gateway.turns[1:]]
    summary = Message("user", [Text("The user wants tea.")])
    assert asked[0] == [summary, Message("user", [Text("Go.")])]
    assert asked[1] == asked[2] == [summary, Message("user", [Text("Hi.")])]


async def test_block_without_a_summary_may_be_anywhere() -> None:
    gateway = in_turn(ANSWER)
    async with serving(gateway) as served:
        await summarized(served, USER, assistant(block("compaction")), USER, compaction=None)
    assert len(gateway.conversations[0].messages) == 2


async def test_summary_in_a_thread_begins_the_thread_again() -> None:
    gateway = in_turn(ANSWER, SUMMARY, ANSWER)
    head: Json = {"system": "Be kind.", "tools": [tool()]}
    async with serving(gateway) as served:
        first = await summarized(served, compaction=None, thread=block("create"), **head)

        def after(answer: "BetaMessage") -> Json:
            return block("continue", previous_message_id=answer.id)

        block_alone = await summarized(served, user("Hm."), thread=after(first))
        await summarized(served, user("Go."), thread=after(block_alone), compaction=None)
    last = gateway.conversations[-1]
    assert last.messages == [
        Message("user", [Text("The user wants tea.")]),
        Message("user", [Text("Go.")]),
    ]
    assert (last.system, last.tools) == (
        gateway.conversations[0].system,
        gateway.conversations[0].tools,
    )
