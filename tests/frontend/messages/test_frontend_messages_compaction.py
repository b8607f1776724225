"""Tests `compact_20260112` over HTTP with the SDK: a summary replaces a long conversation."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from schemas.conversation import Conversation, Message, Text, ToolChoice
from schemas.events import FinishReason, TurnEvent
from services.frontend.apis.messages.compaction import CompactEdit
from services.frontend.turns.compaction import SUMMARIZE
from tests.kit.bodies import assistant, block, messages, tool, user
from tests.kit.bodies import text as text_block
from tests.kit.events import Step, finish, reasoning, text
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.waiting import LIMIT_S, eventually

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


class Turns(FakeGateway):
    """Plays one list of events for each turn. A prompt has 4321 tokens."""

    def __init__(self, *turns: list[TurnEvent]) -> None:
        left = iter(turns)
        super().__init__(lambda: [next(left)])

    def got(self, index: int) -> Conversation:
        return self.turns[index].conversation


def edit(trigger: int | None = 4000, **more: Any) -> Any:
    members = {} if trigger is None else {"trigger": block("input_tokens", value=trigger)}
    return {"edits": [block("compact_20260112", **members, **more)]}


TALK = [user("I want tea."), assistant(text_block("Which?")), user("Green.")]
BODY: Any = messages(
    *TALK, max_tokens=9, system="Be kind.", tools=[tool(), tool("later", defer_loading=True)]
)


async def ask(served: Served, *, stream: bool = False, **more: Any) -> "BetaMessage":
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as client:
        body = {**BODY, "context_management": edit(), **more}
        if not stream:
            made: BetaMessage = await client.beta.messages.create(**body)
            return made
        async with client.beta.messages.stream(**body) as streaming:
            return await streaming.get_final_message()


@pytest.fixture(params=[False, True], ids=["document", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def sent(message: "BetaMessage") -> Any:
    """The message as a client sends it back."""
    return assistant(*(block.to_dict() for block in message.content))


async def test_answer_continues_from_the_summary(stream: bool) -> None:
    gateway = Turns(SUMMARY, ANSWER, ANSWER)
    async with serving(gateway) as served:
        message = await ask(served, stream=stream)
        assert [block.type for block in message.content] == ["compaction", "thinking", "text"]
        first: Any = message.content[0]
        assert first.content == "The user wants tea."
        assert message.stop_reason == "end_turn"
        if not stream:  # the SDK's accumulator leaves the iterations out
            assert message.usage.iterations is not None
            iterations = [one.to_dict() for one in message.usage.iterations]
            assert iterations == [{"type": kind, **USAGE} for kind in ("compaction", "message")]
            assert (message.usage.input_tokens, message.usage.output_tokens) == (56, 74)
        await ask(served, messages=[*TALK, sent(message), user("Thanks.")], context_management=None)
    asked, compacted, later = (gateway.got(n) for n in range(3))
    assert asked.messages[-1] == Message("user", [Text(SUMMARIZE)])
    assert (asked.tool_choice, asked.sampling.max_tokens) == (ToolChoice("none"), None)
    assert [len(c.tools) for c in (asked, compacted, later)] == [2, 2, 2]
    assert compacted.messages == [Message("user", [Text("The user wants tea.")])]
    assert (compacted.system, compacted.sampling.max_tokens) == (asked.system, 9)
    # What the client sends back makes the same prompt again.
    assert later.messages[:1] == compacted.messages
    assert (later.tools, later.system) == (compacted.tools, compacted.system)
    assert [message.role for message in later.messages] == ["user", "assistant", "user"]


async def test_pause_ends_the_answer_after_the_compaction(stream: bool) -> None:
    gateway = Turns(SUMMARY, ANSWER)
    async with serving(gateway) as served:
        message = await ask(
            served, stream=stream, context_management=edit(pause_after_compaction=True)
        )
        assert [block.to_dict() for block in message.content] == [
            {"type": "compaction", "content": "The user wants tea.", "encrypted_content": None}
        ]
        assert message.stop_reason == "compaction"
        if not stream:
            assert message.usage.iterations is not None
            assert [one.to_dict() for one in message.usage.iterations] == [
                {"type": "compaction", **USAGE}
            ]
            assert (message.usage.input_tokens, message.usage.output_tokens) == (0, 0)
        following = await ask(
            served, stream=stream, messages=[*TALK, sent(message)], context_management=edit(5000)
        )
    assert [block.type for block in following.content] == ["thinking", "text"]
    assert gateway.got(1).messages == [Message("user", [Text("The user wants tea.")])]


@pytest.mark.parametrize("managed", [edit(4321), edit(None), {"edits": []}, None])
async def test_conversation_below_the_trigger_is_not_compacted(managed: Any) -> None:
    gateway = Turns(ANSWER)
    async with serving(gateway) as served:
        message = await ask(served, context_management=managed)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.usage.iterations is None
    assert len(gateway.got(0).messages) == 3


def test_default_trigger_fits_the_window() -> None:
    usual = CompactEdit(None, False, None, [])
    assert [usual.applies(tokens, 1_000_000) for tokens in (150_000, 150_001)] == [False, True]
    assert [usual.applies(tokens, 100_000) for tokens in (80_000, 80_001)] == [False, True]


async def test_instructions_replace_the_servers_own() -> None:
    gateway = Turns(SUMMARY, ANSWER, SUMMARY, ANSWER)
    async with serving(gateway) as served:
        await ask(served, context_management=edit(instructions="In one word."))
        await ask(served, context_management=edit(instructions=" "))
    assert gateway.got(0).messages[-1] == Message("user", [Text("In one word.")])
    assert gateway.got(2).messages[-1] == Message("user", [Text(SUMMARIZE)])


async def test_conversation_stays_without_a_summary(stream: bool) -> None:
    gateway = Turns([*reasoning(0, "Hm."), finish(1)], ANSWER)
    async with serving(gateway) as served:
        message = await ask(served, stream=stream)
    first: Any = message.content[0]
    assert (first.type, first.content) == ("compaction", None)
    assert len(gateway.got(1).messages) == 3


async def test_failed_summary_fails_the_request() -> None:
    from anthropic import InternalServerError

    gateway = Turns([*text(0, "The"), finish(1, FinishReason.ERROR)])
    async with serving(gateway) as served:
        with pytest.raises(InternalServerError, match="engine failed"):
            await ask(served)
        assert len(gateway.turns) == 1


async def test_hangup_cancels_the_summary() -> None:
    never = asyncio.Event()
    script: list[Step] = [[*text(0, "The")], never]
    gateway = FakeGateway(lambda: script)
    async with serving(gateway) as served:
        request = asyncio.create_task(ask(served))
        await asyncio.wait_for(gateway.opening.wait(), LIMIT_S)
        await eventually(lambda: bool(gateway.turns) and gateway.turns[0].player is not None)
        request.cancel()
        await asyncio.wait_for(gateway.turns[0].cancel_seen.wait(), LIMIT_S)
    assert len(gateway.turns) == 1


async def test_counting_does_not_compact() -> None:
    from anthropic import AsyncAnthropic

    gateway = Turns()
    async with (
        serving(gateway) as served,
        AsyncAnthropic(base_url=served.url, api_key="k") as client,
    ):
        body = {name: value for name, value in BODY.items() if name != "max_tokens"}
        counted = await client.beta.messages.count_tokens(**body, context_management=edit())
    assert counted.input_tokens == 4321
    assert gateway.turns == []
