"""Real processes that die, drain, or freeze and resume: the turn goes on, or ends with one clear
error."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest

from tests.kit.messages_client import Answer, Client, body, call, events, say
from tests.kit.stack import Child, Stack
from tests.kit.waiting import LIMIT_S, eventually, until

LONG = (
    "Thinking.\n</think>\n\nBefore.\n\n[[delay 15]]"
    + call("ls")
    + "\n\n[[fill 120]]"
    + call("date")
)


def check_whole(answer: Answer) -> None:
    assert answer.error is None
    assert answer.kinds == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert answer.blocks[2]["input"] == {"cmd": "ls"}
    assert answer.blocks[4]["input"] == {"cmd": "date"}
    words = answer.blocks[3]["text"]
    assert "  " not in words.strip()
    assert words.startswith("Every engine waits for something."), "nothing doubled, nothing lost"


async def after_first_call(
    client: Client, request: dict[str, Any]
) -> tuple[asyncio.Task[Answer], asyncio.Event]:
    """Starts a turn; the event is set when its first call is complete."""
    reached = asyncio.Event()

    async def run() -> Answer:
        async with client.http.post(f"{client.url}/v1/messages", json=request) as response:
            assert response.status == 200
            got = []
            async for event in events(response):
                got.append(event)
                if sum(e.name == "content_block_stop" for e in got) == 3:
                    reached.set()
            return Answer(got)

    return asyncio.create_task(run()), reached


async def reference(client: Client) -> list[tuple[str, Any]]:
    return (await client.stream(body(say(LONG.replace("[[delay 15]]", ""))))).contents


async def turns_at(stack: Stack, stage: str) -> dict[str, int]:
    """Running turns by child name, from the heartbeats of the processes."""
    stages = (await asyncio.to_thread(stack.health))["stages"]
    return {p["id"].rpartition("-")[0]: p["running"] for p in stages[stage]}


async def busy(stack: Stack, stage: str) -> str:
    """Waits for a child of a stage that has turns."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            for name, running in (await turns_at(stack, stage)).items():
                if running:
                    return name
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("stage", ["parser", "worker"])
async def test_a_process_that_dies_during_a_turn_is_replaced(
    own_stack: Stack, own_client: Client, stage: str
) -> None:
    expected = await reference(own_client)
    tasks = [await after_first_call(own_client, body(say(LONG))) for _ in range(6)]
    for _, reached in tasks:
        await reached.wait()
    name = await busy(own_stack, stage)
    next(child for child in own_stack.children if child.name == name).kill()
    for task, _ in tasks:
        answer = await asyncio.wait_for(task, LIMIT_S)
        check_whole(answer)
        assert answer.contents == expected


@pytest.mark.parametrize("stage", ["parser", "worker", "preprocessor"])
async def test_a_draining_process_loses_nothing(
    own_stack: Stack, own_client: Client, stage: str
) -> None:
    expected = await reference(own_client)
    tasks = [await after_first_call(own_client, body(say(LONG))) for _ in range(4)]
    for _, reached in tasks:
        await reached.wait()
    leaving = own_stack.of(stage)[0]
    leaving.terminate()
    late = asyncio.create_task(own_client.stream(body(say(LONG))))
    for task, _ in tasks:
        answer = await asyncio.wait_for(task, LIMIT_S)
        check_whole(answer)
        assert answer.contents == expected
    check_whole(await late)
    assert await asyncio.to_thread(leaving.wait) == 0
    assert '"process.left"' in leaving.text()


async def test_turns_survive_a_restart_of_the_bus(own_stack: Stack, own_client: Client) -> None:
    expected = await reference(own_client)
    tasks = [await after_first_call(own_client, body(say(LONG))) for _ in range(4)]
    for _, reached in tasks:
        await reached.wait()
    own_stack.nats.kill()
    beginning = asyncio.create_task(own_client.stream(body(say("Hm.\n</think>\n\nYes."))))
    await asyncio.sleep(0.5)
    own_stack.nats.start()

    await own_client.ready()
    new = await own_client.stream(body(say("Hm.\n</think>\n\nYes.")))
    assert new.contents[-1] == ("text", "Yes.")
    for task, _ in tasks:
        answer = await asyncio.wait_for(task, LIMIT_S)
        assert answer.contents == expected
    with contextlib.suppress(AssertionError):  # sent while there was no bus: refused, or served
        await beginning


GRACE_S = 30
"""The default of `drain_s`."""


@pytest.mark.slow
async def test_a_process_can_be_stopped_while_there_is_no_bus(own_stack: Stack) -> None:
    leaving = [own_stack.of(stage)[0] for stage in ("worker", "parser", "preprocessor")]
    own_stack.nats.kill()
    try:
        for child in leaving:
            child.terminate()
        for child in leaving:
            # A worker that has not delivered the end of a turn waits for the bus until its grace
            # period ends.
            assert await asyncio.to_thread(child.wait, GRACE_S + 15) == 0, child.text()[-2000:]
    finally:
        own_stack.nats.start()


async def test_frozen_preprocessors_are_skipped(own_stack: Stack, own_client: Client) -> None:
    frozen = own_stack.of("preprocessor")[0]
    frozen.pause()
    try:
        answers = await asyncio.gather(
            *(own_client.stream(body(say("Hm.\n</think>\n\nYes."))) for _ in range(6))
        )
        assert all(answer.contents[-1] == ("text", "Yes.") for answer in answers)
    finally:
        frozen.resume()


async def test_a_turn_survives_its_engine_if_there_is_another_worker(
    own_stack: Stack, own_client: Client
) -> None:
    output = "Hm.\n</think>\n\nOne two [[pause 50]][[die out of memory]]three"
    answer = await own_client.stream(body(say(output)))
    assert answer.contents[-1] == ("text", "One two three"), (
        "the other worker continued after the tokens"
    )
    await eventually(lambda: len(own_stack.of("worker")) == 1)
    async with own_client.http.post(
        f"{own_client.url}/v1/messages", json=body(say(output))
    ) as response:
        assert response.status == 200
        got = [event async for event in events(response)]
    assert [e.name for e in got].count("error") == 1
    assert got[-1].name == "error"
    assert got[-1].data["error"]["type"] == "api_error"
    assert "could not be continued within 8 s" in got[-1].data["error"]["message"]
    await eventually(lambda: not own_stack.of("worker"))
    async with own_client.http.post(
        f"{own_client.url}/v1/messages", json=body(say("x"), stream=False)
    ) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0
        assert (await response.json())["error"]["type"] == "overloaded_error"


async def frozen_until_given_up(stack: Stack, child: Child) -> None:
    """Freezes a process until it is counted among the dead, and resumes it."""

    async def given_up() -> bool:
        return child.name not in await turns_at(stack, child.stage)

    child.pause()
    try:
        await until(given_up)
    finally:
        child.resume()


async def idle(stack: Stack, child: Child) -> None:
    """Waits until a process is among the living and has no turn."""

    async def has_none() -> bool:
        return (await turns_at(stack, child.stage)).get(child.name) == 0

    await until(has_none)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["worker", "parser"])
async def test_a_process_that_freezes_and_resumes_drops_the_turns_that_others_have(
    own_stack: Stack, own_client: Client, stage: str
) -> None:
    expected = await reference(own_client)
    longer = LONG.replace("[[delay 15]]", "[[delay 40]]")
    tasks = [await after_first_call(own_client, body(say(longer))) for _ in range(4)]
    for _, reached in tasks:
        await reached.wait()
    name = await busy(own_stack, stage)
    frozen = next(child for child in own_stack.children if child.name == name)
    await frozen_until_given_up(own_stack, frozen)
    await idle(own_stack, frozen)
    for task, _ in tasks:
        answer = await asyncio.wait_for(task, LIMIT_S)
        assert answer.contents == expected
    for other in own_stack.of(stage):
        if other is not frozen:
            other.kill()
    answer = await own_client.stream(body(say(LONG)))
    assert answer.contents == expected, "it serves again"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_turns_of_a_frontend_that_is_gone_are_cancelled(
    own_stack: Stack, own_client: Client, how: str
) -> None:
    """A frontend that is dead, or frozen for longer than `recovery_s`. The frozen one resumes and
    serves again. Its turn has one end: an error, or, where the worker gave the turn up before the
    parser did, the end of the turn on another worker."""
    lost = own_stack.start("frontend")
    client = Client(lost.url)
    await client.ready()
    request = body(say("Hm.\n</think>\n\n[[delay 20]]" + call("ls") + "[[fill 1500]]"))
    request["messages"][0]["content"] = request["messages"][0]["content"].replace(
        "</think>", "</think>\n\nA\n\n"
    )
    task, reached = await after_first_call(client, request)
    await reached.wait()
    await busy(own_stack, "worker")
    if how == "killed":
        lost.kill()
    else:
        lost.pause()
    try:
        for stage in ("worker", "parser"):
            for child in own_stack.of(stage):
                await idle(own_stack, child)
    finally:
        lost.resume()
    if how == "killed":
        with pytest.raises(aiohttp.ClientError):
            await task
    else:
        answer = await asyncio.wait_for(task, LIMIT_S)
        assert [event.name in ("error", "message_stop") for event in answer.events].count(True) == 1
        assert answer.error is not None or answer.usage["output_tokens"] > 1500
        assert (await client.stream(body(say("Hm.\n</think>\n\nYes.")))).contents[-1] == (
            "text",
            "Yes.",
        )
    await client.http.close()


@pytest.mark.slow
async def test_turns_survive_when_every_process_freezes(
    own_stack: Stack, own_client: Client
) -> None:
    """Like a machine that sleeps: no process received a heartbeat, and none is dead."""
    expected = await reference(own_client)
    tasks = [await after_first_call(own_client, body(say(LONG))) for _ in range(4)]
    for _, reached in tasks:
        await reached.wait()
    for child in own_stack.children:
        if child.process.poll() is None:
            child.pause()
    await asyncio.sleep(4)
    for child in own_stack.children:
        if child.process.poll() is None:
            child.resume()
    for task, _ in tasks:
        answer = await asyncio.wait_for(task, LIMIT_S)
        assert answer.error is None
        assert answer.contents == expected
