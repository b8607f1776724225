"""Connects commands that only listen to the bus, as its user `tap`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.runtime.bus import Bus
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.telemetry import open_log


@asynccontextmanager
async def observing(config: BusConfig, name: str, on_fatal: Callable[[str], None]) -> AsyncIterator[Bus]:
    """A connection that is closed at the end. Raises TurnwireError, OSError or ValueError if there is no bus."""
    log = open_log(ServiceConfig(log_level="warning"))
    bus = Bus(
        config,
        name=f"turnwire/{name}",
        inbox_prefix="_INBOX_tap",
        log=log,
        on_fatal=on_fatal,
        on_reconnect=lambda: None,
    )
    try:
        await bus.connect()
        yield bus
    finally:
        await bus.close()
