"""A tiny random model decodes through the whole path: HTTP, four processes, continuous batching,
parser."""

import importlib.util
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.bus_turns import BusTurns
from tests.kit.messages_client import Client
from tests.kit.models import build_random_model
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack

MODEL = "tiny/random"
OUTPUT = 24

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def real(
    make_nats: Callable[[], NatsServer], tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    running = Stack(make_nats(), tiny, tmp_path_factory.mktemp("real"))
    named = {"served_model_name": MODEL}
    worker = {
        **named,
        "engine": "transformers",
        "kv_tokens": 8192,
        "slots": 8,
        "max_model_len": 4096,
    }
    try:
        yield running.start_all(parser=named, preprocessor=named, worker=worker)
    finally:
        running.stop()


@pytest.fixture
async def client(real: Stack) -> AsyncIterator[Client]:
    made = Client(real.url)
    yield made
    await made.http.close()


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


async def test_greedy_output_equals_generate_and_a_second_turn_is_cached(
    real: Stack, client: Client, tiny: Path
) -> None:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    request = ask("Count the boats in the harbour. " * 20)
    async with BusTurns(real.nats.url) as bus:
        answer = await client.stream({**request, "stream": True})
        turn = await bus.ended(answer.events[0].data["message"]["id"].removeprefix("msg_"))
    counted = {k: v for k, v in request.items() if k not in ("max_tokens", "temperature")}
    _, prompt = await client.post("/v1/tokenize", counted)
    with torch.no_grad():
        expected = model.generate(
            torch.tensor([prompt["tokens"]]),
            max_new_tokens=OUTPUT,
            do_sample=False,
            eos_token_id=None,
        )[0, len(prompt["tokens"]) :].tolist()
    assert turn.output == expected
    assert answer.stop_reason == "max_tokens"
    assert answer.usage["output_tokens"] == OUTPUT
    assert answer.usage["cache_read_input_tokens"] == 0

    messages = [
        *request["messages"],
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Sure?"},
    ]
    status, second = await client.post("/v1/messages", {**request, "messages": messages})
    assert status == 200
    assert second["usage"]["cache_read_input_tokens"] > 100, (
        "the first turn's question is in the KV cache"
    )
    total = second["usage"]["input_tokens"] + second["usage"]["cache_read_input_tokens"]
    _, count = await client.post("/v1/messages/count_tokens", {**counted, "messages": messages})
    assert total == count["input_tokens"]


async def test_a_field_that_the_engine_does_not_support_is_refused(client: Client) -> None:
    status, error = await client.post("/v1/messages", ask("hi", cache_salt="mine"))
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    assert "cache_salt" in error["error"]["message"]
    status, _ = await client.post(
        "/v1/messages", ask("hi", presence_penalty=0.5, frequency_penalty=0.1)
    )
    assert status == 200


CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days", "exact"],
    "additionalProperties": False,
}
LINES = 'start: "*** Begin\\n" line{1,3} "*** End"\nline: ("+" | "-") WORD LF\nWORD: /[a-z]{1,8}/\n%import common.LF'
FEW = 3
"""Requests of each kind, with another seed each."""


def check_city(arguments: Any) -> None:
    assert set(arguments) == {"city", "days", "exact"}
    assert arguments["city"] in ("Oslo", "Rome")
    assert 1 <= arguments["days"] <= 9
    assert isinstance(arguments["exact"], bool)


def check_lines(text: str) -> None:
    assert re.fullmatch(r"\*\*\* Begin\n([+-][a-z]{1,8}\n){1,3}\*\*\* End", text), text


async def test_forced_calls_of_chat_keep_to_their_tools(client: Client) -> None:
    """Also with random weights."""
    pytest.importorskip("llguidance")
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": LINES}}
    tools: list[dict[str, Any]] = [
        {
            "type": "function",
            "function": {"name": "weather", "parameters": CITY, "strict": True},
        },
        {"type": "custom", "custom": {"name": "edit", "format": grammar}},
        {"type": "function", "function": {"name": "never", "parameters": CITY}},
    ]
    named = [
        {"type": "function", "function": {"name": "weather"}},
        {"type": "custom", "custom": {"name": "edit"}},
    ]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    for seed in range(FEW):
        body = ask("hi", tools=tools, tool_choice=allowed, parallel_tool_calls=False, seed=seed)
        status, answer = await client.post(
            "/v1/chat/completions", {**body, "temperature": 1, "max_tokens": 300}
        )
        assert status == 200
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        if call["type"] == "custom":
            assert call["custom"]["name"] == "edit"
            check_lines(call["custom"]["input"])
        else:
            assert call["function"]["name"] == "weather"
            check_city(json.loads(call["function"]["arguments"]))


async def test_a_schema_that_cannot_be_kept_to_is_refused(client: Client) -> None:
    pytest.importorskip("llguidance")
    odd = {
        **CITY,
        "properties": {**CITY["properties"], "days": {"type": "array", "uniqueItems": True}},  # type: ignore[dict-item]
    }
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
    status, error = await client.post("/v1/chat/completions", ask("hi", tools=[tool]))
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    assert "uniqueItems" in error["error"]["message"]
