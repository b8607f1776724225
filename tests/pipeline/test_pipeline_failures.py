"""Engine errors and hang-ups: a turn ends with one clear error, and others go on."""

import asyncio

import pytest

from tests.kit.bus_turns import BusTurns
from tests.kit.messages_client import Client, body, events, say
from tests.kit.nats import NatsServer
from tests.kit.waiting import eventually


async def test_an_engine_error_during_a_stream_is_one_error_event(client: Client) -> None:
    others = asyncio.create_task(
        client.stream(body(say("Hm.\n</think>\n\n[[delay 5]][[fill 60]]")))
    )
    output = "Hm.\n</think>\n\nOne two [[pause 100]][[fail CUDA error]] three"
    async with client.http.post(f"{client.url}/v1/messages", json=body(say(output))) as response:
        got = [event async for event in events(response)]
    assert got[-1].name == "error"
    assert [e.name for e in got].count("error") == 1
    status, error = await client.post("/v1/messages", body(say(output), stream=False))
    assert (status, error["type"], error["error"]["type"]) == (500, "error", "api_error")
    assert (await others).error is None


@pytest.mark.parametrize("phase", ["decode", "prefill", "document"])
async def test_a_hang_up_ends_the_turn_in_the_engine(
    client: Client, nats: NatsServer, phase: str
) -> None:
    """Otherwise the turn would take longer than the test waits."""
    pause = "[[pause 60000]]" if phase == "prefill" else ""
    output = f"{pause}Hm.\n</think>\n\n[[delay 30]][[fill 2000]]"
    request = body(say(output), stream=phase != "document")
    async with BusTurns(nats.url) as bus:
        task = asyncio.create_task(client.http.post(f"{client.url}/v1/messages", json=request))
        (turn,) = await bus.begun(1)
        await eventually(lambda: turn.taken if phase == "prefill" else bool(turn.output))
        if phase == "decode":
            await task
        if not task.cancel():  # the stream has begun
            task.result().close()
        assert (await bus.ended(turn.id)).reason == "cancelled"
