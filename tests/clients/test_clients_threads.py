"""Message threads of Anthropic's SDK: its tool runner sends only new messages, and every prompt begins with
the tokens of the turn before."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.clients.conftest import MODEL
from tests.clients.session import Session
from tests.clients.wire import Exchange, turn_id
from tests.kit.messages_client import say
from tests.kit.model_output import written_call

pytestmark = pytest.mark.timeout(900)

TURNS = 50


def outputs(turns: int) -> list[str]:
    """The outputs of a session of so many turns: calls, and an answer."""
    calls = [
        f"I look at {number}.</think>\n\n{written_call('look', at=f'place {number}')}"
        for number in range(turns - 1)
    ]
    return [*calls, "Enough.</think>\n\nThat was all."]


def fields(turns: int, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": 4000,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": f"Look around. {say(*outputs(turns))}"}],
        **more,
    }


def look(at: str) -> str:
    """Looks at a place."""
    return f"There is nothing at {at}."


async def run(url: str, turns: int, *, stream: bool, **more: Any) -> list[str]:
    """Runs the loop; returns the stop reasons."""
    from anthropic import AsyncAnthropic, beta_async_tool

    async def look_async(at: str) -> str:
        """Looks at a place."""
        return look(at)

    async with AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        tools = [beta_async_tool(look_async, name="look")]
        runner: Any = client.beta.messages.tool_runner(
            tools=tools, stream=stream, **fields(turns, **more)
        )
        reasons = []
        async for item in runner:
            message = await item.get_final_message() if stream else item
            reasons.append(message.stop_reason)
        return reasons


def run_sync(url: str, turns: int, *, stream: bool) -> list[str]:
    """The same with the client without async."""
    from anthropic import Anthropic, beta_tool

    with Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        runner: Any = client.beta.messages.tool_runner(
            tools=[beta_tool(look)], stream=stream, **fields(turns)
        )
        return [(item.get_final_message() if stream else item).stop_reason for item in runner]


def check_threaded(exchanges: Sequence[Exchange]) -> None:
    """Checks that only the first request has more than the new messages."""
    first, *others = [one.body for one in exchanges]
    assert first["thread"] == {"type": "create"}
    for body in others:
        assert body["thread"]["type"] == "continue"
        assert not {"system", "tools"} & set(body)
        (message,) = body["messages"]
        assert [block["type"] for block in message["content"]] == ["tool_result"]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_runner_of_fifty_turns_sends_only_new_messages(
    session: Session, stream: bool
) -> None:
    reasons = await run(session.wire.url, TURNS, stream=stream)
    assert reasons == ["tool_use"] * (TURNS - 1) + ["end_turn"]
    check_threaded(session.wire.turns)
    session.check_served()
    if stream:
        await session.check_counts(session.wire.turns[:3])
    assert await session.prefix_breaks(session.wire.turns) == []


async def test_tool_runner_without_async_does_the_same(session: Session) -> None:
    reasons = await asyncio.to_thread(run_sync, session.wire.url, TURNS, stream=False)
    assert reasons == ["tool_use"] * (TURNS - 1) + ["end_turn"]
    check_threaded(session.wire.turns)
    assert await session.prefix_breaks(session.wire.turns) == []


async def test_thread_has_the_prompts_of_whole_histories(session: Session) -> None:
    """The same session without a thread: each turn's prompt has the same tokens."""
    await run(session.wire.url, 5, stream=True)
    await run(session.wire.url, 5, stream=True, thread=False)
    turns = [await session.bus.ended(turn_id(one)) for one in session.wire.turns]
    threaded, whole = turns[:5], turns[5:]
    assert [turn.prompt for turn in threaded] == [turn.prompt for turn in whole]
