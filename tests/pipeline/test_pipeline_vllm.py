"""`turnwire up` with vLLM itself on a CPU (`make test-vllm`): a random model, forced and free
output, and its deaths.

What a turn computes is what is new: the session's prompts are compared token by token on the bus,
and the cache counts with the tokens that were computed before.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cpu import descendants
from bench.random_model import build_random_model
from tests.kit.bus_turns import BusTurns
from tests.kit.engines import with_vllm
from tests.kit.messages_client import TOOLS, Client, call, events, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import ENGINE_LIMIT_S, until_gone
from tests.pipeline.forced_vllm import BLOCK, start_up
from tests.pipeline.thought_budgets import BUDGETS, check_random_model

MODEL = "tiny/vllm"
TURNS = 20
FREE = "[[free]] Count the boats in the harbour, one by one, and do not stop."

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * ENGINE_LIMIT_S),
    with_vllm,
]


@pytest.fixture(scope="module")
def real(
    make_nats: Callable[[], NatsServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("vllm")
    model = build_random_model(directory / "model", hidden=256, layers=4)
    running = start_up(make_nats(), model, directory, MODEL, 8192, **BUDGETS)
    yield running
    running.stop()


def ask(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    options = {"max_tokens": 2000, "temperature": 0, "stream": True}
    return {"model": MODEL, "messages": messages, **options, **more}


def engine_core(pids: list[int]) -> int:
    """vLLM's own name of its engine process."""
    return next(pid for pid in pids if "EngineCor" in Path(f"/proc/{pid}/comm").read_text())


async def test_a_session_of_20_turns_is_exact_and_computes_what_is_new(real: Stack) -> None:
    """Thinking and a tool call in every turn, with arguments that no template writes."""
    client = Client(real.url)
    said = [
        f"Step {n}: I look.</think>\n\n" + call(f"echo  'step {n}'", timeout_s=f"0{n}.50")
        for n in range(TURNS - 1)
    ]
    said.append("All of it is seen.</think>\n\nDone.")
    content = say(*said) + " Look around. [[split]]"
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    order, counts = [], []
    async with BusTurns(real.nats.url) as bus:
        for turn in range(TURNS):
            answer = await client.stream(ask(messages, tools=TOOLS))
            order.append(answer.events[0].data["message"]["id"].removeprefix("msg_"))
            counts.append((answer.usage["input_tokens"], answer.usage["cache_read_input_tokens"]))
            assert answer.stop_reason == ("tool_use" if turn < TURNS - 1 else "end_turn")
            assert answer.kinds == ["thinking", "tool_use" if turn < TURNS - 1 else "text"]
            if turn < TURNS - 1:
                result = {"type": "tool_result", "tool_use_id": answer.blocks[-1]["id"]}
                result["content"] = f"step {turn} was echoed"
                messages += [answer.message, {"role": "user", "content": [result]}]
        turns = [await bus.ended(turn) for turn in order]

    for before, after, (computed, cached) in zip(turns, turns[1:], counts[1:], strict=False):
        assert before.stop_id is not None
        whole = [*before.prompt, *before.output, before.stop_id]
        assert after.prompt[: len(whole)] == whole
        assert cached == (len(whole) - 1) // BLOCK * BLOCK, (
            "all that was computed before, in whole blocks"
        )
        assert computed + cached == len(after.prompt)
    await client.http.close()


async def test_thought_ends_with_its_budget(real: Stack) -> None:
    client = Client(real.url)
    await check_random_model(client, real.nats.url, MODEL, real.model, "[[free]] ")
    await client.http.close()


def worker_of(stack: Stack) -> int:
    """The process that runs the engine."""
    for pid in descendants(stack.children[0].process.pid):
        with contextlib.suppress(OSError):
            if b"\0serve\0worker\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


@pytest.mark.parametrize("victim", ["the engine process", "the worker"])
async def test_after_a_death_no_process_is_left_and_a_new_worker_serves(
    real: Stack, victim: str
) -> None:
    """The turn goes on where the supervisor has a new worker within `--recovery-s`, which a busy
    CPU may not allow, and ends with one error otherwise."""
    client, worker = Client(real.url), worker_of(real)
    children = descendants(worker)
    assert len(children) >= 2
    killed = engine_core(children) if victim == "the engine process" else worker
    question = ask([{"role": "user", "content": FREE}])
    seen: list[Any] = []
    async with client.http.post(f"{client.url}/v1/messages", json=question) as response:
        async for event in events(response):
            seen.append(event)
            if [one.name for one in seen].count("content_block_delta") == 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed, signal.SIGKILL)
    names = [event.name for event in seen]
    assert names.count("message_start") == 1
    if "error" in names:
        assert (names.count("error"), names[-1]) == (1, "error")
        assert victim == "the worker" or "engine" in seen[-1].data["error"]["message"]
    else:
        assert names[-1] == "message_stop"
    await until_gone(worker, *children, timeout_s=ENGINE_LIMIT_S)
    async with asyncio.timeout(ENGINE_LIMIT_S):
        while worker_of(real) in (0, worker) or not real.health().get("ready"):
            await asyncio.sleep(0.5)
    answer = await client.stream({**question, "max_tokens": 4})
    assert answer.stop_reason == "max_tokens"
    await client.http.close()
