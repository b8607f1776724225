"""Tests `compact_20260112` over HTTP: a summary replaces a long conversation."""

from typing import TYPE_CHECKING, Any

import pytest

from schemas.conversation import Message, Text, ToolChoice
from schemas.events import FinishReason, TurnEvent
from services.frontend.apis.messages.compaction.edit import CompactEdit
from services.frontend.turns.compaction import SUMMARIZE
from tests.kit.bodies import assistant, block, messages, tool, user
from tests.kit.events import finish, reasoning, text
from tests.kit.frontend import Served, in_turn, serving

if TYPE_CHECKING:
    from anthropic.types.beta import BetaMessage

SUMMARY: list[TurnEvent] = [*reasoning(0, "Hm."), *text(1, "The user wants tea."), finish(2)]
ANSWER: list[TurnEvent] = [*reasoning(0, "So."), *text(1, "Here it is."), finish(2)]
USAGE = {
    "input_tokens": 56,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 600,
    "output_tokens": 74,
}
SUMMARIZED = Message("user", [Text("The user wants tea.")])


def edit(trigger: int | None = 4000, **more: Any) -> Any:
    """A context edit. The prompts of the fake pipeline have 4321 tokens."""
    members = {} if trigger is None else {"trigger": block("input_tokens", value=trigger)}
    return {"edits": [block("compact_20260112", **members, **more)]}


TALK = [user("I want tea."), assistant("Which?"), user("Green.")]
TOOLS = [tool(), tool("later", defer_loading=True)]
BODY: Any = messages(*TALK, max_tokens=9, system="Be kind.", tools=TOOLS, context_management=edit())


async def ask(served: Served, *, stream: bool = False, **more: Any) -> "BetaMessage":
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client:
        if not stream:
            made: BetaMessage = await client.beta.messages.create(**BODY | more)
            return made
        async with client.beta.messages.stream(**BODY | more) as streaming:
            return await streaming.get_final_message()


def sent(message: "BetaMessage") -> Any:
    """The message as a client sends it back."""
    return assistant(*(block.to_dict() for block in message.content))


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_continues_from_the_summary(stream: bool) -> None:
    gateway = in_turn(SUMMARY, ANSWER, ANSWER)
    async with serving(gateway) as served:
        message = await ask(served, stream=stream)
        assert [block.type for block in message.content] == ["compaction", "thinking", "text"]
        assert message.content[0].to_dict()["content"] == "The user wants tea."
        assert message.stop_reason == "end_turn"
        if not stream:  # the SDK's accumulator leaves the iterations out
            usage = message.usage.to_dict()
            kinds = ("compaction", "message")
            assert usage["iterations"] == [{"type": kind, **USAGE} for kind in kinds]
            assert usage.items() >= USAGE.items()
        await ask(served, messages=[*TALK, sent(message), user("Thanks.")], context_management=None)
    asked, compacted, later = gateway.conversations
    assert asked.messages[-1] == Message("user", [Text(SUMMARIZE)])
    assert (asked.tool_choice, asked.sampling.max_tokens) == (ToolChoice("none"), None)
    assert compacted.messages == [SUMMARIZED]
    assert (compacted.system, compacted.sampling.max_tokens) == (asked.system, 9)
    # What the client sends back makes the same prompt again.
    assert later.messages[:1] == compacted.messages
    assert asked.tools == later.tools == compacted.tools
    assert later.system == compacted.system
    assert [message.role for message in later.messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize("stream", [False, True])
async def test_pause_ends_the_answer_after_the_compaction(stream: bool) -> None:
    gateway = in_turn(SUMMARY, ANSWER)
    paused = edit(pause_after_compaction=True)
    async with serving(gateway) as served:
        message = await ask(served, stream=stream, context_management=paused)
        (only,) = message.content
        whole = block("compaction", content="The user wants tea.", encrypted_content=None)
        assert only.to_dict() == whole
        assert message.stop_reason == "compaction"
        if not stream:
            usage = message.usage.to_dict()
            assert usage["iterations"] == [{"type": "compaction", **USAGE}]
            assert (usage["input_tokens"], usage["output_tokens"]) == (0, 0)
        following = await ask(
            served, stream=stream, messages=[*TALK, sent(message)], context_management=edit(5000)
        )
    assert [block.type for block in following.content] == ["thinking", "text"]
    assert gateway.conversations[1].messages == [SUMMARIZED]


@pytest.mark.parametrize("managed", [edit(4321), edit(None), None])
async def test_conversation_below_the_trigger_is_not_compacted(managed: Any) -> None:
    gateway = in_turn(ANSWER)
    async with serving(gateway) as served:
        message = await ask(served, context_management=managed)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.usage.iterations is None
    assert len(gateway.conversations[0].messages) == 3


def test_default_trigger_fits_the_window() -> None:
    usual = CompactEdit(None, False, None, [])
    assert [usual.applies(tokens, 1_000_000) for tokens in (150_000, 150_001)] == [False, True]
    assert [usual.applies(tokens, 100_000) for tokens in (80_000, 80_001)] == [False, True]


async def test_instructions_replace_the_servers_own() -> None:
    gateway = in_turn(SUMMARY, ANSWER, SUMMARY, ANSWER)
    async with serving(gateway) as served:
        for instructions in ("In one word.", " "):
            await ask(served, context_management=edit(instructions=instructions))
    asked = [conversation.messages[-1] for conversation in gateway.conversations[::2]]
    assert asked == [Message("user", [Text(said)]) for said in ("In one word.", SUMMARIZE)]


async def test_conversation_stays_without_a_summary() -> None:
    gateway = in_turn([*reasoning(0, "Hm."), finish(1)], ANSWER)
    async with serving(gateway) as served:
        message = await ask(served)
    first = message.content[0].to_dict()
    assert (first["type"], first["content"]) == ("compaction", None)
    assert len(gateway.conversations[1].messages) == 3


async def test_failed_summary_fails_the_request() -> None:
    gateway = in_turn([*text(0, "The"), finish(1, FinishReason.ERROR)])
    async with serving(gateway) as served:
        reply = await served.post("/v1/messages", BODY)
    assert (reply.status, len(gateway.turns)) == (500, 1)
    assert "engine failed" in reply.text


async def test_counting_does_not_compact() -> None:
    async with serving() as served:
        counted = await served.post("/v1/messages/count_tokens", BODY)
        assert counted.json["input_tokens"] == 4321
        assert served.gateway.turns == []
