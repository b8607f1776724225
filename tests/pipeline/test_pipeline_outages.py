"""One process of each stage, with nearly the default settings, under load: outages of many seconds
cost no byte."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.messages_client import Answer, Client, body, call, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.slow

STREAMS = 16
OUTPUT = (
    "Thinking.\n</think>\n\nBefore.\n\n{delay}" + call("ls") + "\n\n[[fill 400]]" + call("date")
)
SHORT = "Hm.\n</think>\n\nYes."
COUNTS = {"worker": 1, "parser": 1, "preprocessor": 1}
FRONTEND = {"wait_s": 90}
"""On a busy machine a process takes long to start."""


@pytest.fixture(scope="module")
def lone_stack(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    running = Stack(make_nats(), demo_model, tmp_path_factory.mktemp("lone"))
    try:
        yield running.start_all(COUNTS, frontend=FRONTEND)
    finally:
        running.stop()


@pytest.fixture
async def lone_client(lone_stack: Stack) -> AsyncIterator[Client]:
    lone_stack.restore(COUNTS, frontend=FRONTEND)
    client = Client(lone_stack.url)
    yield client
    await client.http.close()


class Load:
    """Streams in progress."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._expected: list[tuple[str, Any]] = []
        self._tasks: list[asyncio.Task[Answer]] = []

    async def start(self, stack: Stack) -> "Load":
        self._expected = (await self._client.stream(body(say(OUTPUT.format(delay=""))))).contents
        request = body(say(OUTPUT.format(delay="[[delay 20]]")))
        self._tasks = [asyncio.create_task(self._client.stream(request)) for _ in range(STREAMS)]
        await eventually(lambda: stack.health().get("turns") == STREAMS)
        await asyncio.sleep(2)
        return self

    async def whole(self) -> None:
        """Each stream has ended well, with every byte once and in its place."""
        for task in self._tasks:
            answer = await asyncio.wait_for(task, 2 * LIMIT_S)
            assert answer.error is None, answer.error
            assert answer.contents == self._expected


async def short(client: Client) -> Answer:
    return await client.stream(body(say(SHORT)))


async def test_turns_survive_while_the_bus_hangs(lone_stack: Stack, lone_client: Client) -> None:
    load = await Load(lone_client).start(lone_stack)
    lone_stack.nats.pause()
    new = asyncio.create_task(short(lone_client))
    await asyncio.sleep(8)
    lone_stack.nats.resume()
    assert (await new).contents[-1] == ("text", "Yes.")
    await load.whole()


async def test_the_bus_hangs_for_so_long_that_every_process_connects_again(
    lone_stack: Stack, lone_client: Client
) -> None:
    load = await Load(lone_client).start(lone_stack)
    lone_stack.nats.pause()
    await asyncio.sleep(35)
    lone_stack.nats.resume()
    await load.whole()


@pytest.mark.parametrize("stage", ["worker", "parser", "preprocessor"])
async def test_the_only_process_of_a_stage_is_killed_and_started_again(
    lone_stack: Stack, lone_client: Client, stage: str
) -> None:
    load = await Load(lone_client).start(lone_stack)
    lone_stack.of(stage)[0].kill()
    new = asyncio.create_task(short(lone_client))
    await asyncio.sleep(15)
    lone_stack.start(stage)
    assert (await new).contents[-1] == ("text", "Yes.")
    await load.whole()


@pytest.mark.parametrize("stage", ["worker", "parser", "preprocessor", "frontend"])
async def test_the_only_process_of_a_stage_is_suspended(
    lone_stack: Stack, lone_client: Client, stage: str
) -> None:
    load = await Load(lone_client).start(lone_stack)
    suspended = lone_stack.of(stage)[0]
    suspended.pause()
    await asyncio.sleep(10)
    suspended.resume()
    await load.whole()
    assert (await short(lone_client)).contents[-1] == ("text", "Yes.")


async def test_worker_and_parser_are_suspended_together(
    lone_stack: Stack, lone_client: Client
) -> None:
    load = await Load(lone_client).start(lone_stack)
    suspended = [lone_stack.of(stage)[0] for stage in ("worker", "parser")]
    for child in suspended:
        child.pause()
    await asyncio.sleep(12)
    for child in suspended:
        child.resume()
    await load.whole()
