"""Work that waits for what is being sent."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.typing import FilteringBoundLogger

from services.runtime.requests import after_sending
from tests.kit.nats import NatsServer
from tests.runtime.test_runtime_bus import make


@pytest.mark.parametrize("at_the_end_of_the_tick", [False, True])
async def test_messages_of_this_tick_are_written_before(
    at_the_end_of_the_tick: bool, nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus = make(nats.url, quiet_log)
    await bus.connect()
    await bus.flush()
    unwritten: list[int] = []

    def pending() -> None:
        unwritten.append(bus._client.pending_data_size)

    def send() -> None:
        bus.publish("t.a", b"data")
        pending()

    soon: Callable[..., object] = (
        asyncio.get_running_loop().call_soon if at_the_end_of_the_tick else lambda send: send()
    )
    soon(send)
    after_sending(pending)
    while len(unwritten) < 2:
        await asyncio.sleep(0)
    assert unwritten[0] > 0
    assert unwritten[1] == 0
    await bus.close()
