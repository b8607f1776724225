"""Engine errors, slow readers and hang-ups: a turn ends with one clear error, and others go on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import nats as nats_library
import pytest

from schemas import subjects
from schemas.frames import TokenFrame
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


class Tap:
    """Follows the token frames on the bus."""

    def __init__(self) -> None:
        self.finished: dict[str, str] = {}
        """Turn → finish reason."""
        self.opened = asyncio.Event()
        """A worker has sent the parse context of a turn."""
        self.decoding = asyncio.Event()
        """A worker has sent tokens."""

    async def receive(self, message: Any) -> None:
        for entry in msgspec.json.decode(message.data, type=TokenFrame).entries:
            self.opened.set()
            if entry.ids:
                self.decoding.set()
            if entry.finish is not None:
                self.finished[entry.turn] = str(entry.finish.reason)


@pytest.fixture
async def tap(nats: NatsServer) -> AsyncIterator[Tap]:
    found = Tap()
    bus = await nats_library.connect(nats.url)
    await bus.subscribe(f"{subjects.PREFIX}.tok.>", cb=found.receive)
    await bus.flush()
    yield found
    await bus.close()


@pytest.mark.parametrize("phase", ["decode", "prefill", "document"])
async def test_a_hang_up_ends_the_turn_in_the_engine(client: Client, tap: Tap, phase: str) -> None:
    """Otherwise the turn would take longer than the test waits."""
    pause = "[[pause 60000]]" if phase == "prefill" else ""
    output = f"{pause}Hm.\n</think>\n\n[[delay 30]][[fill 2000]]"
    request = body(say(output), stream=phase != "document")
    task = asyncio.create_task(client.http.post(f"{client.url}/v1/messages", json=request))
    await (tap.opened if phase == "prefill" else tap.decoding).wait()
    if phase == "decode":
        await task
    if not task.cancel():  # the stream has begun
        task.result().close()
    await eventually(lambda: bool(tap.finished))
    assert list(tap.finished.values()) == ["cancelled"]
