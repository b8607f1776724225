"""`turnwire up` in front of `vllm serve` on a CPU (`make test-vllm`): a random model with forced
output, and the death of the server in mid-turn."""

import asyncio
import json
import re
from collections.abc import Callable
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.random_model import build_random_model
from bench.vllm.scripts import FORCED
from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.engines import torch, transformers, with_vllm
from tests.kit.messages_client import TOOLS, Answer, Client, call, say
from tests.kit.nats import NatsServer, free_port
from tests.kit.vllm_serve import vllm_serve
from tests.kit.waiting import ENGINE_LIMIT_S
from tests.pipeline.forced_vllm import start_up

MODEL = "tiny/served"
TURNS = 6
FLAGS = (f"--logits-processors={FORCED}", "--max-model-len=8192", "--max-num-seqs=8")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * ENGINE_LIMIT_S),
    with_vllm,
]


async def cache_hits(url: str) -> int:
    """How many tokens of prompts the server has found in its cache, by its own metrics."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        (hits,) = re.findall(
            r"^vllm:prefix_cache_hits_total\{.*\} (\S+)", await answer.text(), re.M
        )
    return int(float(hits))


async def test_session_is_exact_and_survives_the_death_of_the_server(
    make_nats: Callable[[], NatsServer], tmp_path: Path
) -> None:
    model = build_random_model(tmp_path / "model", hidden=256, layers=4)
    port = free_port()
    async with vllm_serve(model, *FLAGS, port=port) as server:
        options = {"engine": "vllm-server", "engine_url": server.url, "engine_args": "{}"}
        stack = await asyncio.to_thread(
            start_up,
            make_nats(),
            model,
            tmp_path,
            MODEL,
            8192,
            **options,
            recovery_s=ENGINE_LIMIT_S,
        )
        client = Client(stack.url)
        try:
            before = await cache_hits(server.url)
            turns, cached = await play(client, stack.nats.url)
            assert not list(filter(None, starmap(prefix_break, pairwise(turns))))
            assert sum(cached) == await cache_hits(server.url) - before
            assert all(count > 0 for count in cached[1:])

            whole = await client.stream(counting())
            stream = asyncio.create_task(client.stream(counting()))
            await asyncio.sleep(1.0)
            server.kill()
            async with vllm_serve(model, *FLAGS, port=port):
                again = await stream
            assert texts(again) == texts(whole)
            assert again.stop_reason == whole.stop_reason == "max_tokens"
        finally:
            await client.http.close()
            stack.stop()


async def test_weights_change_in_the_middle_of_a_rollouts_turn(
    make_nats: Callable[[], NatsServer], tmp_path: Path
) -> None:
    """Every log probability of the sample is the one that the weights of its version give."""
    folders = [build_random_model(tmp_path / "model", hidden=256, layers=4)]
    for version in (1, 2):
        torch.manual_seed(version)
        own = transformers.Qwen3ForCausalLM.from_pretrained(folders[-1], dtype=torch.float32)
        with torch.no_grad():
            for weight in own.parameters():
                weight.add_(torch.randn_like(weight) * 0.02)
        folders.append(tmp_path / "weights" / str(version))
        own.save_pretrained(folders[-1])

    async with vllm_serve(folders[0], "--max-model-len=8192", "--max-num-seqs=8") as server:
        options = {"engine": "vllm-server", "engine_url": server.url, "engine_args": "{}"}
        nats = make_nats()
        nats.make_buckets()
        stack = await asyncio.to_thread(
            start_up,
            nats,
            folders[0],
            tmp_path,
            MODEL,
            8192,
            **options,
            weights_dir=str(tmp_path / "weights"),
        )
        http = aiohttp.ClientSession(stack.url)
        try:
            rollout = await post(http, "/rollouts", {"model": MODEL})
            path = f"/rollouts/{rollout['id']}"
            said = body([{"role": "user", "content": "Count."}], max_tokens=600)
            turn = asyncio.create_task(post(http, f"{path}/v1/messages", {**said, "stream": False}))
            for version in (1, 2):
                await asyncio.sleep(1.5)
                update = {"model": MODEL, "source": str(version), "version": version}
                (worker,) = (await post(http, "/engines/weights", update))["workers"]
                assert worker["weights_version"] == version
            assert (await turn)["stop_reason"] == "max_tokens"
            async with http.get(f"{path}/samples") as answer:
                (sample,) = map(json.loads, (await answer.text()).splitlines())
        finally:
            await http.close()
            stack.stop()

    start, end = sample["turns"][0]["start"], sample["turns"][0]["end"]
    assert end - start == 600
    assert [span["version"] for span in sample["weights"]] == [0, 1, 2]
    assert sample["weights"][0]["start"] == start
    for span, folder in zip(sample["weights"], folders, strict=True):
        own = transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            scores = own(torch.tensor([sample["ids"]])).logits[0].log_softmax(dim=-1)
        places = range(span["start"], span["end"])
        expected = [float(scores[at - 1, sample["ids"][at]]) for at in places]
        assert [sample["logprobs"][at] for at in places] == pytest.approx(expected, abs=1e-3)


async def post(http: aiohttp.ClientSession, path: str, data: dict[str, Any]) -> Any:
    async with http.post(path, json=data) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


def texts(answer: Answer) -> list[str]:
    return [block.get("thinking", block.get("text", "")) for block in answer.blocks]


async def play(client: Client, nats_url: str) -> tuple[list[Any], list[int]]:
    """A session with a thought and a call in each turn: its turns on the bus, and the cached tokens
    that its usage shows."""
    said = [f"Step {n}.</think>\n\n" + call(f"echo  'step {n}'") for n in range(TURNS)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": say(*said) + " Go. [[split]]"}]
    order, cached = [], []
    async with BusTurns(nats_url) as bus:
        for turn in range(TURNS):
            answer = await client.stream(body(messages, tools=TOOLS))
            order.append(answer.events[0].data["message"]["id"].removeprefix("msg_"))
            cached.append(answer.usage["cache_read_input_tokens"])
            result = {"type": "tool_result", "tool_use_id": answer.blocks[-1]["id"]}
            result["content"] = f"step {turn} was echoed"
            messages += [answer.message, {"role": "user", "content": [result]}]
        return [await bus.ended(turn) for turn in order], cached


def counting() -> dict[str, Any]:
    """A turn of 400 greedy tokens."""
    return body([{"role": "user", "content": "[[free]] Count."}], max_tokens=400)


def body(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    options = {"max_tokens": 2000, "temperature": 0, "stream": True}
    return {"model": MODEL, "messages": messages, **options, **more}
