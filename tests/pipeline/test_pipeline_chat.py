"""Chat Completions and Completions through real processes, with OpenAI's SDK."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.kit.messages_client import TOOLS, call, say
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


async def test_a_call_is_dispatched_while_the_model_goes_on(sdk: "AsyncOpenAI") -> None:
    output = f"Hm.\n</think>\n\n{call('ls', timeout_s=2)}[[delay 20]][[fill 50]]"
    dispatches: list[tuple[Any, str]] = []
    inline = later = ""
    stream = await sdk.chat.completions.create(
        model=MODEL,
        messages=user(output),
        tools=CHAT_TOOLS,
        stream=True,
        extra_headers={"x-turnwire-tool-dispatch": "1"},
    )
    async for chunk in stream:
        extra = chunk.model_extra or {}
        if "tool_call_dispatch" in extra:
            dispatches.append((extra["tool_call_dispatch"], inline))
        for choice in chunk.choices:
            later += (choice.delta.content or "") if dispatches else ""
            for piece in choice.delta.tool_calls or []:
                inline += (piece.function.arguments if piece.function else None) or ""
    ((dispatched, before),) = dispatches
    assert len(later) > 50, "text follows the call"
    assert json.loads(before) == {"cmd": "ls", "timeout_s": 2}
    assert dispatched["tool_call"]["function"]["arguments"] == before


async def test_sealed_reasoning_returns_to_its_place(stack: Stack, sdk: "AsyncOpenAI") -> None:
    messages = user(TWICE, "So.\n</think>\n\nAll done.")
    details = {"x-turnwire-reasoning-details": "1"}
    async with sdk.chat.completions.stream(
        model=MODEL, messages=messages, tools=CHAT_TOOLS, extra_headers=details
    ) as stream:
        message = (await stream.get_final_completion()).choices[0].message.to_dict()
    assert message["reasoning_content"] == "First thought.Second thought."
    calls: Any = message["tool_calls"]
    replayed: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "reasoning_content": message["reasoning_content"],
        "reasoning_details": message["reasoning_details"],
        "tool_calls": [{key: made[key] for key in ("id", "type", "function")} for made in calls],
    }
    for made in replayed["tool_calls"]:
        made["function"].pop("parsed_arguments", None)
    messages += [
        replayed,
        *({"role": "tool", "tool_call_id": made["id"], "content": "ok"} for made in calls),
    ]
    prompt = await _prompt(stack, {"model": MODEL, "messages": messages, "tools": CHAT_TOOLS})
    shown = prompt.partition("<|im_start|>assistant")[2]
    places = [shown.find(text) for text in ("First thought.", "one", "Second thought.", "two")]
    assert -1 < places[0] < places[1] < places[2] < places[3]
    assert shown.count("thought.") == 2
    last = await sdk.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
    assert last.choices[0].message.content == "All done."


async def _prompt(stack: Stack, body: dict[str, Any]) -> str:
    async with aiohttp.ClientSession(stack.url) as http:
        tokenized = await (await http.post("/v1/tokenize", json=body)).json()
        text = await (
            await http.post("/v1/detokenize", json={"model": MODEL, "tokens": tokenized["tokens"]})
        ).json()
    prompt: str = text["prompt"]
    return prompt


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


async def test_raw_prompts_are_completed(sdk: "AsyncOpenAI") -> None:
    prompts = [say("one two three four five"), say("two three one four five")]
    whole = await sdk.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=3, echo=True)
    dispatches = [choice.text for choice in whole.choices]
    assert dispatches[0] == dispatches[1] == prompts[0] + "one two three"
    assert dispatches[2] == dispatches[3] == prompts[1] + "two three one"
    assert [choice.finish_reason for choice in whole.choices] == ["length"] * 4
    scored = await sdk.completions.create(model=MODEL, prompt=prompts[0], max_tokens=3, logprobs=1)
    logprobs = scored.choices[0].logprobs
    assert logprobs
    assert "".join(logprobs.tokens or []) == scored.choices[0].text
    assert logprobs.text_offset == [0, 3, 7]
