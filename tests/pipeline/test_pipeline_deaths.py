"""Real processes that die, drain, or freeze and resume: the turn goes on, or ends with one clear
error. Other deaths and outages are played in virtual time: `test_pipeline_outages.py`,
`test_pipeline_given_up.py`, `test_pipeline_recovery.py`."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.kit.messages_client import Answer, Client, after_first_call, body, call, events, say
from tests.kit.stack import Child, Stack, busy, turns_at
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


async def reference(client: Client) -> list[tuple[str, Any]]:
    return (await client.stream(body(say(LONG.replace("[[delay 15]]", ""))))).contents


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


async def test_draining_processes_lose_nothing(own_stack: Stack, own_client: Client) -> None:
    """One of each stage at once."""
    expected = await reference(own_client)
    tasks = [await after_first_call(own_client, body(say(LONG))) for _ in range(6)]
    for _, reached in tasks:
        await reached.wait()
    leaving = [own_stack.of(stage)[0] for stage in ("parser", "worker", "preprocessor")]
    for child in leaving:
        child.terminate()
    late = asyncio.create_task(own_client.stream(body(say(LONG))))
    for task, _ in tasks:
        answer = await asyncio.wait_for(task, LIMIT_S)
        check_whole(answer)
        assert answer.contents == expected
    check_whole(await late)
    for child in leaving:
        assert await asyncio.to_thread(child.wait) == 0
        assert '"process.left"' in child.text()


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
async def test_a_worker_that_freezes_and_resumes_drops_the_turns_that_others_have(
    own_stack: Stack, own_client: Client
) -> None:
    expected = await reference(own_client)
    longer = LONG.replace("[[delay 15]]", "[[delay 40]]")
    tasks = [await after_first_call(own_client, body(say(longer))) for _ in range(4)]
    for _, reached in tasks:
        await reached.wait()
    name = await busy(own_stack, "worker")
    frozen = next(child for child in own_stack.children if child.name == name)
    await frozen_until_given_up(own_stack, frozen)
    await idle(own_stack, frozen)
    for task, _ in tasks:
        answer = await asyncio.wait_for(task, LIMIT_S)
        assert answer.contents == expected
    for other in own_stack.of("worker"):
        if other is not frozen:
            other.kill()
    answer = await own_client.stream(body(say(LONG)))
    assert answer.contents == expected, "it serves again"
