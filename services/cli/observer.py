"""Connects commands to the bus, by default as the user `tap`, which may only listen."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.nats.bus import Bus
from services.runtime.observability.telemetry import open_log

ANSWER_S = 0.15
"""How long closing waits for the bus. It is short, because a signal must end a command within a
second."""


def _ignore(_reason: str) -> None:
    """Ignores the end of the connection: later requests fail."""


@asynccontextmanager
async def observing(
    config: BusConfig,
    name: str,
    on_fatal: Callable[[str], None] = _ignore,
    *,
    user: str = "tap",
    log_level: Literal["warning", "error"] = "warning",
) -> AsyncIterator[Bus]:
    """Connects to the bus, and disconnects at the end. Raises TurnwireError if the bus cannot be
    reached."""
    log = open_log(ServiceConfig(log_level=log_level))
    bus = Bus(
        config,
        name=f"turnwire/{name}",
        inbox_prefix=f"_INBOX_{user}",
        log=log,
        on_fatal=on_fatal,
    )
    try:
        await bus.connect()
        yield bus
    finally:
        await bus.close(ANSWER_S)
