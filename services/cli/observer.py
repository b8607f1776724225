"""Connects commands to the bus: as its user `tap`, which only listens, unless they name another."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal

from services.runtime.bus import Bus
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.observability.telemetry import open_log

CLOSE_S = 0.5


@asynccontextmanager
async def observing(
    config: BusConfig,
    name: str,
    on_fatal: Callable[[str], None] = lambda _reason: None,
    *,
    user: str = "tap",
    log_level: Literal["warning", "error"] = "warning",
) -> AsyncIterator[Bus]:
    """A connection that is closed at the end. Raises TurnwireError if there is no bus."""
    log = open_log(ServiceConfig(log_level=log_level))
    bus = Bus(
        config,
        name=f"turnwire/{name}",
        inbox_prefix=f"_INBOX_{user}",
        log=log,
        on_fatal=on_fatal,
        on_reconnect=lambda: None,
    )
    try:
        await bus.connect()
        yield bus
    finally:
        with suppress(TimeoutError):  # a bus that hangs
            async with asyncio.timeout(CLOSE_S):
                await bus.close()
