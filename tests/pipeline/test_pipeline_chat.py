"""Chat Completions through real processes, with OpenAI's SDK."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.messages_client import TOOLS, Client, call, say
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import until

if TYPE_CHECKING:
    from openai import AsyncOpenAI

CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"]}}
    for tool in TOOLS
]
TWICE = f"First thought.\n</think>\n\n{call('one')}\n<think>\nSecond thought.\n</think>\n\n{call('two')}"
LONG = "Hm.\n</think>\n\nIt begins.[[delay 50]][[fill 4000]]"


@pytest.fixture
async def sdk(stack: Stack) -> "AsyncIterator[AsyncOpenAI]":
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def user(*outputs: str) -> Any:
    return [{"role": "user", "content": say(*outputs)}]


async def test_sealed_reasoning_returns_to_its_place(client: Client, sdk: "AsyncOpenAI") -> None:
    messages = user(TWICE, "So.\n</think>\n\nAll done.")
    details = {"x-turnwire-reasoning-details": "1"}
    first = await sdk.chat.completions.create(
        model=MODEL, messages=messages, tools=CHAT_TOOLS, extra_headers=details
    )
    message = first.choices[0].message.to_dict()
    assert message["reasoning_content"] == "First thought.Second thought."
    calls: Any = message["tool_calls"]
    results = [{"role": "tool", "tool_call_id": made["id"], "content": "ok"} for made in calls]
    messages += [message, *results]
    request = {"model": MODEL, "messages": messages, "tools": CHAT_TOOLS}
    _, tokenized = await client.post("/v1/tokenize", request)
    tokens = {"model": MODEL, "tokens": tokenized["tokens"]}
    _, text = await client.post("/v1/detokenize", tokens)
    shown = text["prompt"].partition("<|im_start|>assistant")[2]
    places = [shown.find(text) for text in ("First thought.", "one", "Second thought.", "two")]
    assert -1 < places[0] < places[1] < places[2] < places[3]
    assert shown.count("thought.") == 2
    last = await sdk.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
    assert last.choices[0].message.content == "All done."


async def test_a_hang_up_ends_every_choice(stack: Stack, sdk: "AsyncOpenAI") -> None:
    stream = await sdk.chat.completions.create(model=MODEL, messages=user(LONG), n=3, stream=True)
    begun: set[int] = set()
    async for chunk in stream:
        begun |= {choice.index for choice in chunk.choices if choice.delta.content}
        if len(begun) == 3:
            break
    await stream.close()

    async def idle() -> bool:
        stages = (await asyncio.to_thread(stack.health))["stages"]
        return not any(process["running"] for process in stages["worker"])

    await until(idle)  # the turns themselves would take longer than that
