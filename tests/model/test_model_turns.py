"""A model that writes English, with each engine: what only tokens of a real model can show."""

import random
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import Client
from tests.kit.stack import Stack
from tests.model.conftest import BLOCK, MODEL

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


async def text(client: Client, question: str, **more: Any) -> str:
    answer = await client.stream(ask(question, **more))
    return "".join(block.get("text", "") for block in answer.blocks)


async def test_each_prompt_of_50_sampled_turns_begins_with_all_tokens_before(
    client: Client, serving: Stack
) -> None:
    """At temperature 1 a small model writes everything: halves of characters, spellings that no
    tokenizer would choose, and answers that end at the limit."""
    rng = random.Random(7)
    topics = ["Kyōto 京都", "emoji 🐙🎉", "C++ <templates>", "1234567", "tabs\tand\nlines"]
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
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        asked = {"model": MODEL, "max_tokens": 24, "temperature": 0, "messages": messages, **more}
        status, answer = await client.post("/v1/chat/completions", asked)
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


async def test_forced_calls_fit_their_schema(client: Client) -> None:
    """SmolLM2 never saw a tool: the grammar alone makes its tokens a call."""
    own = {"tools": [{**WEATHER, "strict": True}], "tool_choice": {"type": "any"}}
    question = "Will it rain in Rome in the next three days?"
    for temperature in (0, 1, 1, 1, 1):
        request = ask(question, temperature=temperature, max_tokens=200, **own)
        answer = await client.stream(request)
        assert answer.kinds[0] == "tool_use"
        arguments = answer.blocks[0]["input"]
        assert arguments["city"] in ("Oslo", "Rome")
        assert 1 <= arguments["days"] <= 9
        assert len(arguments) == 2
