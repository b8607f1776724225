"""Searches of tools through real processes: a scripted agent finds and calls the right one of 250
tools, and every prompt begins with all tokens before."""

import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from tests.kit.tool_catalogue import catalogue, tasks

pytestmark = pytest.mark.slow
MOST_TOKENS = 2000
"""Of the first prompt, beyond those of the session without deferred tools."""
ROOM = {"ledger_store_mb": 64}


@pytest.fixture(scope="module")
def tool_stack(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    running = Stack(make_nats(), demo_model, tmp_path_factory.mktemp("tools"))
    try:
        yield running.start_all(parser=ROOM, preprocessor=ROOM)
    finally:
        running.stop()


@pytest.fixture
async def bus(tool_stack: Stack) -> AsyncIterator[BusTurns]:
    async with BusTurns(tool_stack.nats.url) as recording:
        yield recording


def asking(task: str) -> str:
    return f"Use a tool that {task}."


async def check_prefix(bus: BusTurns, number: int) -> None:
    assert len(await bus.begun(number)) == number
    decoded = [await bus.ended(turn) for turn in [*bus.turns]]
    assert [prefix_break(*pair) for pair in pairwise(decoded)] == [None] * (number - 1)


def messages_tools(search: str) -> list[dict[str, Any]]:
    tools = [
        {"name": name, "description": about, "input_schema": schema, "defer_loading": True}
        for name, about, schema in catalogue()
    ]
    return [{"type": f"{search}_20251119", "name": search}, *tools]


@pytest.mark.parametrize("search", ["tool_search_tool_regex", "tool_search_tool_bm25"])
async def test_messages_finds_and_calls_tools(
    tool_stack: Stack, bus: BusTurns, search: str
) -> None:
    import anthropic

    tools: Any = messages_tools(search)
    history: list[Any] = []
    client = anthropic.AsyncAnthropic(base_url=tool_stack.url, api_key="any", max_retries=0)
    async with client:
        for name, task in tasks().items():
            history.append({"role": "user", "content": asking(task)})
            answer = await client.messages.create(
                model=MODEL, max_tokens=2000, tools=tools, messages=history
            )
            assert answer.stop_reason == "tool_use", answer
            (call,) = (block for block in answer.content if block.type == "tool_use")
            (found,) = (
                block for block in answer.content if block.type == "tool_search_tool_result"
            )
            assert found.content.type == "tool_search_tool_search_result"
            assert name in [tool.tool_name for tool in found.content.tool_references]
            assert (call.name, {*call.input}) == (name, {"workspace", "name"})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": f"{name} ran"}
            history.append({"role": "assistant", "content": answer.content})
            history.append({"role": "user", "content": [result]})
            answer = await client.messages.create(
                model=MODEL, max_tokens=2000, tools=tools, messages=history
            )
            assert f"{name} ran" in answer.content[-1].text  # type: ignore[union-attr]
            history.append({"role": "assistant", "content": answer.content})
        first = history[:1]
        counted = await client.messages.count_tokens(model=MODEL, tools=tools, messages=first)
        bare = await client.messages.count_tokens(model=MODEL, messages=first)
    await check_prefix(bus, 3 * len(tasks()))
    assert counted.input_tokens == len(next(iter(bus.turns.values())).prompt)
    assert counted.input_tokens - bare.input_tokens <= MOST_TOKENS


def responses_tools(*, in_namespaces: bool) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    for name, about, schema in catalogue():
        service, _, bare = name.partition("_")
        function = {
            "type": "function",
            "name": bare if in_namespaces else name,
            "description": about,
            "parameters": schema,
            "strict": False,
            "defer_loading": True,
        }
        if not in_namespaces:
            tools.append(function)
            continue
        if not tools or tools[-1]["name"] != service:
            described = f"Works with {service} for the user."
            tools.append(
                {"type": "namespace", "name": service, "description": described, "tools": []}
            )
        tools[-1]["tools"].append(function)
    return [*tools, {"type": "tool_search"}]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("in_namespaces", [True, False])
async def test_responses_finds_and_calls_tools(
    tool_stack: Stack, bus: BusTurns, stored: bool, in_namespaces: bool
) -> None:
    import openai

    tools: Any = responses_tools(in_namespaces=in_namespaces)
    client = openai.AsyncOpenAI(base_url=f"{tool_stack.url}/v1", api_key="any", max_retries=0)
    history: list[Any] = []
    previous: Any = openai.omit

    async def ask(item: dict[str, Any]) -> Any:
        nonlocal previous
        history.append(item)
        answer = await client.responses.create(
            model=MODEL,
            tools=tools,
            store=stored,
            include=["reasoning.encrypted_content"],
            input=history[-1:] if stored else history,
            previous_response_id=previous if stored else openai.omit,
        )
        history.extend(item.to_dict() for item in answer.output)
        previous = answer.id
        return answer

    async with client:
        for name, task in tasks().items():
            answer = await ask({"role": "user", "content": asking(task)})
            assert [item.type for item in answer.output] == [
                *("reasoning", "tool_search_call", "tool_search_output"),
                *("reasoning", "function_call"),
            ]
            call = answer.output[-1]
            called = f"{call.namespace}_{call.name}" if in_namespaces else call.name
            assert (called, {*json.loads(call.arguments)}) == (name, {"workspace", "name"})
            output = {"type": "function_call_output", "call_id": call.call_id}
            answer = await ask({**output, "output": f"{name} ran"})
            assert f"{name} ran" in answer.output_text
        first = history[:1]
        counted = await client.responses.input_tokens.count(model=MODEL, tools=tools, input=first)
        bare = await client.responses.input_tokens.count(model=MODEL, input=first)
    await check_prefix(bus, 3 * len(tasks()))
    assert counted.input_tokens == len(next(iter(bus.turns.values())).prompt)
    assert counted.input_tokens - bare.input_tokens <= MOST_TOKENS
