"""Budgets of reasoning tokens through real processes and all APIs, on the script engine and on a
random model."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
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


def request(api: Api, text: str, *, model: str = MODEL, **more: Any) -> tuple[str, dict[str, Any]]:
    """Path and body of a request with a budget of `LIMIT`."""
    if api == "messages":
        thinking = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
        turns = [{"role": "user", "content": text}]
        return "/v1/messages", {
            "model": model,
            "max_tokens": 4000,
            "messages": turns,
            **thinking,
            **more,
        }
    if api == "responses":
        return "/v1/responses", {
            "model": model,
            "input": text,
            "reasoning": {"effort": "low"},
            **more,
        }
    turns = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {
        "model": model,
        "messages": turns,
        "reasoning_effort": "low",
        **more,
    }


def contents(api: Api, document: dict[str, Any]) -> tuple[str, str, int]:
    """Reasoning, text, and reasoning tokens of an answer."""
    if api == "messages":
        blocks = {block["type"]: block for block in document["content"]}
        counted = document["usage"]["output_tokens_details"]["thinking_tokens"]
        return blocks["thinking"]["thinking"], blocks["text"]["text"], counted
    if api == "responses":
        items = {item["type"]: item["content"][0]["text"] for item in document["output"]}
        return (
            items["reasoning"],
            items["message"],
            document["usage"]["output_tokens_details"]["reasoning_tokens"],
        )
    (choice,) = document["choices"]
    counted = document["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return choice["message"]["reasoning_content"], choice["message"]["content"], counted


async def streamed(client: Client, path: str, ask: dict[str, Any]) -> str:
    """The text deltas of a streamed answer, reasoning first."""
    if path == "/v1/chat/completions":
        ask = {**ask, "stream_options": {"include_usage": True}}
    async with client.http.post(f"{client.url}{path}", json={**ask, "stream": True}) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).splitlines()
    pieces = []
    for line in lines:
        if line.startswith("data: {"):
            data = json.loads(line.removeprefix("data: "))
            delta = data.get("delta") if isinstance(data.get("delta"), str) else None
            inner = data["delta"] if isinstance(data.get("delta"), dict) else {}
            for choice in data.get("choices") or []:
                inner = choice["delta"]
            texts = (
                inner.get(name) for name in ("thinking", "text", "reasoning_content", "content")
            )
            pieces += [delta or "", *(text for text in texts if text)]
    return "".join(pieces)


@pytest.mark.parametrize("api", APIS)
async def test_budget_holds_on_every_api_streamed_or_not(client: Client, api: Api) -> None:
    path, ask = request(api, say(THOUGHT + "So it is."))
    status, document = await client.post(path, ask)
    assert status == 200, document
    thought, text, tokens = contents(api, document)
    assert thought.startswith("Look. ")
    assert (text, tokens) == ("So it is.", LIMIT + END)
    assert await streamed(client, path, ask) == thought + text


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


@pytest.mark.parametrize("delay_s", [0.3, 1.0, 2.2])
async def test_turn_with_a_budget_continues_when_its_worker_is_killed(
    scripted: Stack, client: Client, delay_s: float
) -> None:
    """Killed early in the thought, late in it, and in the answer."""
    slow = say("[[delay 20]]" + THOUGHT + "So it is, and this is the whole answer. [[fill 40]]")
    path, ask = request("chat", slow)
    _, before = await client.post(path, ask)
    running = asyncio.create_task(streamed(client, path, ask))
    await asyncio.sleep(delay_s)
    (worker,) = scripted.of("worker")
    worker.kill()
    worker.start()
    thought, text, _ = contents("chat", before)
    assert await running == thought + text


async def check_random_model(
    client: Client, nats_url: str, name: str, directory: Path, mark: str = ""
) -> None:
    """A random model writes noise, never the end of a thought: it would think to the end of its
    tokens. On every API its thought ends with the budget, an answer follows, and the next prompt
    begins with all tokens of the turn."""
    end = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id("</think>")
    assert end is not None
    for api in APIS:
        limit = {"responses": "max_output_tokens"}.get(api, "max_tokens")
        path, ask = request(api, f"{mark}Say something.", model=name, temperature=0, **{limit: 160})
        status, document = await client.post(path, ask)
        assert status == 200, document
        thought, text, tokens = contents(api, document)
        assert thought
        assert text
        assert tokens == LIMIT + END
        assert await streamed(client, path, ask) == thought + text
        messages = [Message("user", [Text(f"{mark}Say something else, by {api}.")])]
        async with BusTurns(nats_url) as bus:
            for stream in (False, True, False, True):
                conversation = Conversation(
                    name,
                    messages,
                    thinking=Thinking("adaptive", effort="low"),
                    sampling=Sampling(max_tokens=160, temperature=0.0),
                )
                answer = await client.converse(api, conversation, stream=stream)
                assert [block.kind for block in answer.blocks] == ["reasoning", "text"]
                messages += [
                    Message("assistant", answer.parts),
                    Message("user", [Text("And else?")]),
                ]
            turns = [await bus.ended(turn.id) for turn in await bus.begun(4)]
        assert [turn.output.index(end) + 1 for turn in turns] == [LIMIT + END] * 4
        assert [
            found for pair in pairwise(turns) if (found := prefix_break(*pair)) is not None
        ] == []


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
