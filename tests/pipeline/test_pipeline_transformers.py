"""A tiny random model decodes through the whole path: HTTP, four processes, parser."""

import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.random_model import build_random_model
from tests.kit.bus_turns import BusTurns
from tests.kit.messages_client import Client
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.pipeline.thought_budgets import BUDGETS, check_random_model

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
        preprocessor = {**named, **BUDGETS}
        yield running.start_all(parser=named, preprocessor=preprocessor, worker=worker)
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


async def test_thought_ends_with_its_budget(real: Stack, client: Client, tiny: Path) -> None:
    await check_random_model(client, real.nats.url, MODEL, tiny)
