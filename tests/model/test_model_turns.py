"""A model that writes English, with each engine: what only tokens of a real model can show."""

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.clients.bus_turns import BusTurns, prefix_break
from tests.clients.claude import ClaudeCode, blocks
from tests.clients.machine import Machine
from tests.kit.messages_client import Client, events
from tests.kit.stack import Stack
from tests.kit.waiting import eventually
from tests.model.conftest import BLOCK, MODEL
from tests.pipeline.forced_vllm import LIMIT_S

TURNS = 50
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""The system prompt of its own template: with another, a model of this size answers worse."""
WEATHER = {
    "name": "get_weather",
    "description": "Returns the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Oslo", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
async def client(serving: Stack) -> AsyncIterator[Client]:
    made = Client(serving.url)
    yield made
    await made.http.close()


def ask(*said: str, **more: Any) -> dict[str, Any]:
    """A request of the Messages API: the user's and the assistant's messages in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    return {
        "model": MODEL,
        "max_tokens": 40,
        "temperature": 0,
        "system": SYSTEM,
        "messages": messages,
        "stream": True,
        **more,
    }


def chat(question: str, **more: Any) -> dict[str, Any]:
    """A request of Chat Completions."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"model": MODEL, "max_tokens": 24, "temperature": 0, "messages": messages, **more}


async def text(client: Client, question: str, **more: Any) -> str:
    answer = await client.stream(ask(question, **more))
    return "".join(block.get("text", "") for block in answer.blocks)


async def test_each_prompt_of_50_sampled_turns_begins_with_all_tokens_before(
    client: Client, serving: Stack
) -> None:
    """At temperature 1 a small model writes everything: halves of characters, spellings that no
    tokenizer would choose, and answers that end at the limit."""
    rng = random.Random(7)
    topics = [
        "the sea",
        "Kyōto 京都",
        "emoji 🐙🎉",
        "C++ <templates>",
        "1234567",
        "tabs\tand\nlines",
    ]
    messages: list[dict[str, Any]] = []
    async with BusTurns(serving.nats.url) as bus:
        for turn in range(TURNS):
            question = f"{turn}: say something about {rng.choice(topics)}."
            messages.append({"role": "user", "content": question})
            request = ask(temperature=1, max_tokens=rng.randrange(1, 48)) | {"messages": messages}
            messages.append((await client.stream(request)).message)
            if not messages[-1]["content"]:  # it ended at once
                messages[-1]["content"] = [{"type": "text", "text": "…"}]
        turns = [await bus.ended(turn.id) for turn in await bus.begun(TURNS)]
    assert len(turns) == TURNS
    exact = [(earlier, later) for earlier, later in pairwise(turns) if earlier.output]
    assert [found for earlier, later in exact if (found := prefix_break(earlier, later))] == []
    for earlier, later in exact:
        whole = len(earlier.prompt) + len(earlier.output)
        computed = (whole - 1) // BLOCK * BLOCK
        assert (later.cached or 0) >= computed, "the cache has what was computed"
    assert len({tuple(turn.output) for turn in turns}) > TURNS // 2


async def test_it_answers_in_english_and_the_tokenizer_reads_what_it_wrote(
    client: Client, serving: Stack
) -> None:
    assert "blue" in await text(client, "What color is the sky on a clear day?")
    tokenizer = Tokenizer.from_file(str(serving.model / "tokenizer.json"))
    async with BusTurns(serving.nats.url) as bus:
        said = await text(client, "How much is 2 + 2?")
        (turn,) = [await bus.ended(turn.id) for turn in await bus.begun(1)]
    assert "4" in said
    assert tokenizer.decode(turn.output) == said
    assert turn.stop_id == tokenizer.token_to_id("<|im_end|>")


async def test_sampling_fields_change_what_they_name(client: Client) -> None:
    question = "Invent a name for a boat."

    async def said(**more: Any) -> str:
        status, answer = await client.post("/v1/chat/completions", chat(question, **more))
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    greedy = await said()
    assert await said() == greedy
    assert await said(temperature=1, top_k=1) == greedy
    assert await said(temperature=1, min_p=1) == greedy
    assert await said(temperature=1, top_p=1e-9) == greedy
    seeded = [await said(temperature=1.5, seed=seed) for seed in (1, 1, 2, 3)]
    assert seeded[0] == seeded[1]
    assert len(set(seeded)) == 3


async def test_closed_connection_ends_the_decoding(client: Client, serving: Stack) -> None:
    endless = ask("Write a very long story about the sea.", max_tokens=4000)
    async with BusTurns(serving.nats.url) as bus:
        async with client.http.post(f"{client.url}/v1/messages", json=endless) as response:
            async for event in events(response):
                if event.name == "content_block_delta":
                    break
        (turn,) = bus.turns.values()
        assert not turn.reason
        length = -1
        while length != len(turn.output):  # each engine makes several steps in a second
            length = len(turn.output)
            await asyncio.sleep(3.0)
        assert 0 < length < 4000
    await eventually(lambda: serving.health()["stages"]["worker"][0]["running"] == 0, LIMIT_S)
    assert await text(client, "What is the capital of France?")


@pytest.mark.parametrize("temperature", [0, 1])
async def test_forced_call_fits_its_schema(client: Client, temperature: float) -> None:
    """SmolLM2 never saw a tool: the grammar alone makes its tokens a call."""
    own = {"tools": [{**WEATHER, "strict": True}], "tool_choice": {"type": "any"}}
    question = "Will it rain in Rome in the next three days?"
    for _ in range(1 if temperature == 0 else 8):
        request = ask(question, temperature=temperature, max_tokens=200, **own)
        answer = await client.stream(request)
        assert answer.kinds[0] == "tool_use"
        arguments = answer.blocks[0]["input"]
        assert arguments["city"] in ("Oslo", "Rome")
        assert 1 <= arguments["days"] <= 9
        assert len(arguments) == 2


async def test_claude_code_gets_an_answer(serving: Stack, tmp_path: Any) -> None:
    machine = Machine(tmp_path)
    claude = await ClaudeCode(machine).connect(serving.url)
    machine.environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = "64"
    own = ("--system-prompt", SYSTEM, "--tools", "Bash")
    ran = await claude.ask("What is the capital of France?", *own)
    assert [said for kind, said in blocks(ran.lines) if kind in ("text", "tool_use") and said]
