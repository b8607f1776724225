"""Real processes that die or drain, and a bus that restarts: turns go on, or end with one clear
error. Other deaths and outages are played in virtual time."""

import asyncio
from typing import Any

import pytest

from tests.kit.messages_client import Answer, Client, body, call, events, say
from tests.kit.stack import Stack, busy
from tests.kit.waiting import LIMIT_S, eventually

LONG = (
    "Thinking.\n</think>\n\nBefore.\n\n[[delay 15]]"
    + call("ls")
    + "\n\n[[fill 120]]"
    + call("date")
)
SHORT = "Hm.\n</think>\n\nYes."


class Streams:
    """Turns that run, each after its first call."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: list[asyncio.Task[Answer]] = []
        self._expected: list[tuple[str, Any]] = []

    async def start(self, count: int) -> "Streams":
        quick = await self._client.stream(body(say(LONG.replace("[[delay 15]]", ""))))
        assert quick.kinds == ["thinking", "text", "tool_use", "text", "tool_use"]
        assert quick.blocks[3]["text"].startswith("Every engine waits for something.")
        self._expected = quick.contents
        request = body(say(LONG))
        starting = (self._client.begin(request, "content_block_stop", 3) for _ in range(count))
        self._tasks = await asyncio.gather(*starting)
        return self

    async def end_well(self) -> None:
        for task in self._tasks:
            answer = await asyncio.wait_for(task, LIMIT_S)
            assert (answer.error, answer.contents) == (None, self._expected)


@pytest.mark.parametrize("stage", ["parser", "worker"])
async def test_a_process_that_dies_during_a_turn_is_replaced(
    own_stack: Stack, own_client: Client, stage: str
) -> None:
    streams = await Streams(own_client).start(6)
    name = await busy(own_stack, stage)
    next(child for child in own_stack.children if child.name == name).kill()
    await streams.end_well()


async def test_draining_processes_lose_nothing(own_stack: Stack, own_client: Client) -> None:
    """One of each stage at once."""
    streams = await Streams(own_client).start(6)
    leaving = [own_stack.of(stage)[0] for stage in ("parser", "worker", "preprocessor")]
    for child in leaving:
        child.terminate()
    late = asyncio.create_task(own_client.stream(body(say(SHORT))))
    await streams.end_well()
    assert (await late).contents[-1] == ("text", "Yes.")
    for child in leaving:
        assert await asyncio.to_thread(child.wait) == 0
        assert '"process.left"' in child.text()


async def refused_or_whole(client: Client) -> None:
    """A turn that begins while the bus is away, or has just returned."""
    url = f"{client.url}/v1/messages"
    async with client.http.post(url, json=body(say(SHORT))) as response:
        if response.status != 503:
            answer = Answer([event async for event in events(response)])
            assert (answer.error, answer.contents[-1]) == (None, ("text", "Yes."))


async def test_turns_survive_a_restart_of_the_bus(own_stack: Stack, own_client: Client) -> None:
    streams = await Streams(own_client).start(4)
    own_stack.nats.kill()
    await asyncio.gather(refused_or_whole(own_client), asyncio.to_thread(own_stack.nats.start))
    await own_client.ready()
    new = await own_client.stream(body(say(SHORT)))
    assert new.contents[-1] == ("text", "Yes.")
    await streams.end_well()


async def test_a_turn_survives_its_engine_if_there_is_another_worker(
    own_stack: Stack, own_client: Client
) -> None:
    output = "Hm.\n</think>\n\nOne two [[pause 50]][[die out of memory]]three"
    answer = await own_client.stream(body(say(output)))
    assert answer.contents[-1] == ("text", "One two three"), "the other worker went on"
    await eventually(lambda: len(own_stack.of("worker")) == 1)
    url = f"{own_client.url}/v1/messages"
    async with own_client.http.post(url, json=body(say(output))) as response:
        got = [event async for event in events(response)]
    assert [event.name for event in got].count("error") == 1
    assert got[-1].data["error"]["type"] == "api_error"
    assert "could not be continued within 8 s" in got[-1].data["error"]["message"]
    await eventually(lambda: not own_stack.of("worker"))
    async with own_client.http.post(url, json=body(say("x"), stream=False)) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0
        assert (await response.json())["error"]["type"] == "overloaded_error"
