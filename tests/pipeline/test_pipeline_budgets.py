"""Budgets of reasoning tokens through real processes and all APIs, on the script engine and on a
random model."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tokenizers import Tokenizer

from schemas.conversation import Conversation, Message, Sampling, Text, Thinking
from tests.clients.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import Client, body, call, say
from tests.kit.models import build_random_model
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from turnwire_tools.clients.answer import APIS, Api

LIMIT = 64
END = 2
"""The tokens before the answer that the parser counts as reasoning: a line break and the closing
tag."""
BUDGETS = {"effort_budgets": f"low={LIMIT}"}
THOUGHT = "Look. [[fill 500]]\n</think>\n\n"

pytestmark = pytest.mark.slow  # stacks of their own


@pytest.fixture(scope="module")
def scripted(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    running = Stack(make_nats(), demo_model, tmp_path_factory.mktemp("budgets"))
    try:
        yield running.start_all(preprocessor=BUDGETS)
    finally:
        running.stop()


@pytest.fixture
async def client(scripted: Stack) -> AsyncIterator[Client]:
    connected = Client(scripted.url)
    yield connected
    await connected.http.close()


def asking(text: str, *earlier: Message, model: str = MODEL) -> Conversation:
    """A conversation with a budget of `LIMIT`."""
    return Conversation(
        model,
        [*earlier, Message("user", [Text(text)])],
        thinking=Thinking("adaptive", effort="low"),
        sampling=Sampling(max_tokens=4000),
    )


@pytest.mark.parametrize("api", APIS)
async def test_budget_holds_on_every_api_streamed_or_not(
    scripted: Stack, client: Client, demo_model: Path, api: Api
) -> None:
    for stream in (False, True):
        async with BusTurns(scripted.nats.url) as bus:
            answer = await client.converse(api, asking(say(THOUGHT + "So it is.")), stream=stream)
            (begun,) = await bus.begun(1)
            turn = await bus.ended(begun.id)
        thought, text = answer.blocks
        assert thought.text.startswith("Look. ")
        assert (thought.kind, text.kind, text.text) == ("reasoning", "text", "So it is.")
        assert turn.output.index(end_of_thought(demo_model)) + 1 == LIMIT + END


def end_of_thought(model: Path) -> int:
    """The token that ends a thought."""
    end = Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id("</think>")
    assert end is not None
    return int(end)


async def test_next_prompt_begins_with_the_prompt_and_all_tokens_of_the_turn(
    client: Client,
) -> None:
    """With calls, whose results come back: the template keeps the thought."""
    more = {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "return_token_ids": True,
    }
    outputs = say(THOUGHT + call("ls"), THOUGHT + call("pwd"), "Short.\n</think>\n\nDone.")
    messages: list[dict[str, Any]] = [{"role": "user", "content": outputs}]
    known: list[int] = []
    for turn in range(3):
        _, document = await client.post(
            "/v1/messages", body("", messages=messages, stream=False, **more)
        )
        prompt, ids = document["prompt_token_ids"], document["token_ids"]
        assert prompt[: len(known)] == known, turn
        known = prompt + ids[:-1]
        content = document["content"]
        messages.append({"role": "assistant", "content": content})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
            for block in content
            if block["type"] == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    assert content[-1]["text"] == "Done."


async def test_turn_with_a_budget_continues_when_its_worker_is_killed(
    scripted: Stack, client: Client
) -> None:
    slow = asking(say("[[delay 20]]" + THOUGHT + "So it is. [[fill 40]]"))
    before = await client.converse("chat", slow, stream=False)
    begun = asyncio.Event()
    running = asyncio.create_task(client.converse("chat", slow, stream=True, begun=begun))
    await begun.wait()
    (worker,) = scripted.of("worker")
    worker.kill()
    worker.start()
    assert (await running).story == before.story


async def check_random_model(
    client: Client, nats_url: str, name: str, directory: Path, mark: str = ""
) -> None:
    """A random model writes noise, never the end of a thought: it would think to the end of its
    tokens. On every API its thought ends with the budget, an answer follows, and the next prompt
    begins with all tokens of the turn."""
    end = end_of_thought(directory)
    for api in APIS:
        messages: list[Message] = []
        async with BusTurns(nats_url) as bus:
            for stream in (False, True, False, True):
                conversation = asking(f"{mark}Say something, by {api}.", *messages, model=name)
                sampling = Sampling(max_tokens=160, temperature=0.0)
                conversation = structs.replace(conversation, sampling=sampling)
                answer = await client.converse(api, conversation, stream=stream)
                assert [block.kind for block in answer.blocks] == ["reasoning", "text"]
                messages = [*conversation.messages, Message("assistant", answer.parts)]
            turns = [await bus.ended(turn.id) for turn in await bus.begun(4)]
        assert [turn.output.index(end) + 1 for turn in turns] == [LIMIT + END] * 4
        assert [prefix_break(*pair) for pair in pairwise(turns)] == [None] * 3


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
async def test_random_model_is_stopped_and_continued(
    make_nats: Callable[[], NatsServer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = build_random_model(tmp_path_factory.mktemp("tiny") / "model")
    running = Stack(make_nats(), model, tmp_path_factory.mktemp("random"))
    name = {"served_model_name": "tiny"}
    worker = {
        **name,
        "engine": "transformers",
        "kv_tokens": 8192,
        "slots": 4,
        "max_model_len": 4096,
    }
    try:
        running.start_all(parser=name, preprocessor={**name, **BUDGETS}, worker=worker)
        client = Client(running.url)
        await check_random_model(client, running.nats.url, "tiny", model)
        await client.http.close()
    finally:
        running.stop()
