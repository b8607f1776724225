"""Broken calls are decoded again, through real processes: the client, the next prompt and the counts
know nothing of them but their tokens."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Conversation, Message, Result, Sampling, Text, ToolSpec
from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import TOOLS, Client, body, call, say
from tests.kit.nats import NatsServer, free_port
from tests.kit.stack import MODEL, Stack, busy
from tests.kit.waiting import LIMIT_S, eventually
from tests.pipeline.tap import Tap
from tests.pipeline.test_pipeline_rollouts import checked as checked_samples
from tests.pipeline.test_pipeline_rollouts import make, result_of
from turnwire_tools.clients.answer import APIS, Api

pytestmark = pytest.mark.slow
PROSE = "I look.\n</think>\n\n Looking, now. \n\n"
GOOD = PROSE + call("ls", timeout_s="2.50")
BROKEN = PROSE + call("ls").replace("<parameter=cmd>", "<parameter>")
UNKNOWN = PROSE + call("ls").replace("run_shell", "run_shall") + "[[fill 4000]]"
SHELL = json.loads(json.dumps(TOOLS[0]))
LIST = [ToolSpec(SHELL["name"], SHELL["description"], SHELL["input_schema"])]
ROOM = {"ledger_store_mb": 64}
WARM = {"module": "tests.pipeline.warm_worker"}


def second(first: str, then: str) -> str:
    """What a model writes at temperature 0, and when it is asked again."""
    return f"{first}[[warm]]{then}"


@pytest.fixture(scope="module")
def checked(
    make_nats: Callable[[], NatsServer],
    demo_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("checked")
    times: dict[str, Any] = {"beat_interval_s": 0.25, "dead_after_s": 1.5}
    running = Stack(make_nats(), demo_model, directory, **times)
    options: dict[str, dict[str, Any]] = {
        "worker": WARM,
        "parser": {**ROOM, "metrics_port": free_port()},
        "preprocessor": {**ROOM, "guide_calls": "syntax"},
    }
    try:
        yield running.start_all({"worker": 2}, **options)
    finally:
        running.stop()


@pytest.fixture
async def client(checked: Stack) -> AsyncIterator[Client]:
    connected = Client(checked.url)
    yield connected
    await connected.http.close()


def conversation(*outputs: str) -> Conversation:
    return Conversation(
        MODEL,
        [Message("user", [Text(say(*outputs))])],
        tools=LIST,
        sampling=Sampling(max_tokens=9000, temperature=0.0),
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_client_gets_the_second_call(
    checked: Stack, client: Client, api: Api, stream: bool
) -> None:
    asked = conversation(second(BROKEN, GOOD), "Fine.\n</think>\n\nDone.")
    async with BusTurns(checked.nats.url) as bus:
        answer = await client.converse(api, asked, stream=stream)
        (first,) = await bus.begun(1)
        assert answer.end == "calls"
        assert answer.calls == ['run_shell {"cmd": "ls", "timeout_s": 2.5}']
        assert ("text", " Looking, now. ") in answer.story
        assert (await bus.ended(first.id)).attempt == 2
        assert answer.usage is not None
        assert answer.usage[0] == len(first.prompt)
        assert first.generated + 5 < answer.usage[1] < 2 * first.generated

        results = [Result(block.call_id, [Text("a.py")]) for block in answer.blocks if block.name]
        messages = [
            *asked.messages,
            Message("assistant", answer.parts),
            Message("tool", [*results]),
        ]
        asked = Conversation(MODEL, messages, tools=LIST, sampling=asked.sampling)
        following = await client.converse(api, asked, stream=stream)
        assert following.story[-1] == ("text", "Done.")
        later = (await bus.begun(2))[-1]
        assert prefix_break(first, later) is None


async def test_call_without_end_is_cut_at_its_name(checked: Stack, client: Client) -> None:
    """The worker stops. A second broken call is sent as it is."""
    request = body(say(second(UNKNOWN, GOOD)), temperature=0)
    answer = await client.stream(request)
    assert answer.blocks[-1]["input"] == {"cmd": "ls", "timeout_s": 2.5}
    assert answer.usage["output_tokens"] < 200
    again = await client.stream(body(say(second(UNKNOWN, BROKEN)), temperature=0))
    assert again.stop_reason == "end_turn"
    assert again.blocks[-1]["name"] == "run_shell"
    await idle(checked)
    (frontend,) = checked.of("frontend")
    lines = [json.loads(line) for line in frontend.text().splitlines() if "broken_call" in line]
    assert {line["cause"] for line in lines} >= {"unknown_tool"}
    assert not any("run_sha" in json.dumps(line) for line in lines)


async def test_choices_with_ids_and_log_probabilities(client: Client) -> None:
    """Each of two choices is decoded again; what it reports is what it consists of."""
    functions = [
        {"type": "function", "function": {"name": one.name, "parameters": one.schema}}
        for one in LIST
    ]
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": say(second(BROKEN, GOOD))}],
        "tools": functions,
        "n": 2,
        "temperature": 0,
        "max_tokens": 900,
        "return_token_ids": True,
        "logprobs": True,
        "stop": ["STOP"],
    }
    status, broken = await client.post("/v1/chat/completions", request)
    assert status == 200
    request["messages"] = [{"role": "user", "content": say(second(GOOD, GOOD))}]
    _, whole = await client.post("/v1/chat/completions", request)
    expected = whole["choices"][0]
    for choice in broken["choices"]:
        assert choice["token_ids"] == expected["token_ids"]
        assert (
            choice["message"]["tool_calls"][0]["function"]
            == (expected["message"]["tool_calls"][0]["function"])
        )
        tokens = [token["token"] for token in choice["logprobs"]["content"]]
        assert tokens == [token["token"] for token in expected["logprobs"]["content"]]
    more = broken["usage"]["completion_tokens"] - whole["usage"]["completion_tokens"]
    assert more > 10
    assert more % 2 == 0


async def test_sample_of_a_rollout_has_the_kept_tokens(
    checked: Stack, client: Client, tmp_path: Path
) -> None:
    trainer = await make(client)
    tap = Tap(checked.nats.url, tmp_path)
    try:
        trainer.messages.append({"role": "user", "content": say(second(BROKEN, GOOD))})
        answer = await trainer.agent.stream({**trainer.request, "temperature": 0})
        trainer.messages.append(answer.message)
        await trainer.ask(result_of(answer))
        (sample,) = await checked_samples(trainer, tap)
        (same,) = await asyncio.to_thread(tap.samples, checked.model)
        assert same["ids"] == sample["ids"]
    finally:
        tap.stop()
        await trainer.close()
    first, _ = sample["turns"]
    assert first["end"] - first["start"] < answer.usage["output_tokens"]


async def test_worker_dies_in_the_second_attempt(checked: Stack, client: Client) -> None:
    slow = GOOD.replace("ls", "ls[[pause 60000]] -la")
    answering = asyncio.create_task(client.stream(body(say(second(BROKEN, slow)), temperature=0)))
    (frontend,) = checked.of("frontend")
    before = frontend.text().count("broken_call")
    await eventually(lambda: frontend.text().count("broken_call") > before)
    await asyncio.sleep(0.5)
    name = await busy(checked, "worker")
    (worker,) = [child for child in checked.of("worker") if child.name == name]
    worker.kill()
    await eventually(lambda: "frontend.interrupted" in frontend.text())
    # The pause is not repeated: the other worker plays the rest of the script.
    answer = await asyncio.wait_for(answering, 2 * LIMIT_S)
    assert answer.blocks[-1]["input"] == {"cmd": "ls -la", "timeout_s": 2.5}
    checked.start("worker", **WARM)
    checked.wait_ready({"worker": 2})


async def test_client_leaves_in_the_second_attempt(checked: Stack, client: Client) -> None:
    (frontend,) = checked.of("frontend")
    before = frontend.text().count("broken_call")
    request = body(say(second(BROKEN, PROSE + "[[silence]]")), temperature=0)
    answering = asyncio.create_task(client.stream(request))
    await eventually(lambda: frontend.text().count("broken_call") > before)
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    await idle(checked)


async def idle(stack: Stack) -> None:
    """Returns when no process has a turn."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            stages = (await asyncio.to_thread(stack.health))["stages"]
            if not any(process["running"] for stage in stages.values() for process in stage):
                return
            await asyncio.sleep(0.05)


async def test_broken_calls_are_counted(checked: Stack, client: Client) -> None:
    await client.stream(body(say(second(BROKEN, GOOD)), temperature=0))
    (parser,) = checked.of("parser")
    port = next(part for part in parser._argv if part.startswith("--metrics-port="))[15:]
    async with client.http.get(f"http://127.0.0.1:{port}/metrics") as response:
        text = await response.text()
    lines = [line for line in text.splitlines() if line.startswith("turnwire_broken_calls_total{")]
    assert any('cause="unreadable"' in line and 'family="qwen3_coder"' in line for line in lines)
