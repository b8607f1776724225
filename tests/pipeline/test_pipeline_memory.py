"""The memory of every process has a plateau: it grows until the caches are full, and then no
more."""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.messages_client import TOOLS, body, call, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("MEMORY_TEST_REQUESTS", "10000"))
STEPS = 12
AT_ONCE = 6
GROWTH = 4.0
"""MiB from the middle of the run to its end. The heap's holes vary by about half of that."""
SMALL = {"prompt_cache_mb": 2, "ledger_mb": 2}


@pytest.fixture(scope="module")
def small_stack(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Caches are small, so that they are full long before the end."""
    running = Stack(make_nats(), demo_model, tmp_path_factory.mktemp("memory"))
    try:
        yield running.start_all(
            preprocessor=SMALL,
            worker={"kv_tokens": 280_000},
            frontend={"response_store_entries": 200, "response_store_bytes": 1 << 20},
        )
    finally:
        running.stop()


def resident(pid: int) -> float:
    """MiB of a process's own memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return (
        int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])
        / 1024
    )


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"{rng.getrandbits(20):x}" for _ in range(count))


async def session(http: aiohttp.ClientSession, rng: random.Random) -> int:
    """A session with tools, instructions and words of its own. Returns the number of its
    requests."""
    outputs = [
        f"{words(rng, 20)}\n</think>\n\n{call(words(rng, 5))}",
        f"Done.\n</think>\n\n{words(rng, 40)}",
    ]
    tools = TOOLS if rng.random() < 0.7 else [{**TOOLS[0], "description": words(rng, 60)}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"{say(*outputs)} {words(rng, 200)}"}
    ]
    system = words(rng, rng.choice([10, 100, 600]))
    path = rng.choice(["/v1/messages", "/v1/messages", "/v1/responses"])
    if path == "/v1/responses":
        ask = {"model": body("")["model"], "input": messages[0]["content"], "instructions": system}
        async with http.post(path, json=ask) as response:
            assert response.status == 200, await response.text()
            await response.read()
        return 1
    for turn in range(2):
        request = body(
            "",
            messages=messages,
            tools=tools,
            system=system,
            stream=False,
            metadata={"user_id": words(rng, 2)},
        )
        async with http.post(path, json=request) as response:
            assert response.status == 200, await response.text()
            content = (await response.json())["content"]
        calls = [block for block in content if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": one["id"], "content": words(rng, 50)}
            for one in calls
        ]
        if not results:
            return turn + 1
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": results},
        ]
    return 2


@pytest.mark.timeout(300 + REQUESTS // 10)
async def test_memory_has_a_plateau(small_stack: Stack) -> None:
    rng, done = random.Random(1), 0
    taken: dict[str, list[float]] = {child.stage: [] for child in small_stack.children}

    async def work(until: int) -> None:
        nonlocal done
        while done < until:
            made = await session(http, rng)
            done += made

    async with aiohttp.ClientSession(small_stack.url) as http:
        for step in range(1, STEPS + 1):
            await asyncio.gather(*(work(REQUESTS * step // STEPS) for _ in range(AT_ONCE)))
            for child in small_stack.children:
                taken[child.stage].append(round(resident(child.process.pid), 1))
    print(done, "requests:", taken)
    for stage, sizes in taken.items():
        middle, end = sizes[STEPS // 2 - 2 : STEPS // 2 + 1], sizes[-3:]
        assert min(end) <= max(middle) + GROWTH, f"{stage}: {sizes}"
