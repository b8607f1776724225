"""Connects commands to the bus: as its user `tap`, which only listens, unless they name another."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from services.cli.errors import UsageError
from services.runtime.bus import Bus, Delivery
from services.runtime.config import BusConfig, ServiceConfig
from services.runtime.config.loader import mask_passwords
from services.runtime.observability.telemetry import open_log

PATTERN = re.compile(r"(?:(?:\*|[^\s.*>]+)\.)*(?:\*|>|[^\s.*>]+)")
"""A subject of NATS with wildcards: `tw.v1.*.worker`, `tw.v1.>`."""


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
        await bus.close()


async def follow(config: BusConfig, name: str, patterns: Sequence[str], take: Callable[[Delivery], None]) -> int:
    """Passes messages to `take` until a signal or the end of stdout's reader (status 0), or the loss of the bus (1).

    Raises UsageError for a pattern that is none, else as `observing`.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    def received(delivery: Delivery) -> None:
        try:
            take(delivery)
        except (BrokenPipeError, SystemExit):  # rich turns the first into the second
            end(0)

    if wrong := [pattern for pattern in patterns if not PATTERN.fullmatch(pattern)]:
        raise UsageError(f"not a subject of NATS: {wrong[0]!r}")
    async with observing(config, name, on_fatal=lambda _reason: end(1)) as bus:
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, end, 0)
        for subject in patterns:
            await bus.subscribe(subject, received)
        await bus.flush()  # from now on every message arrives
        print(f"listening on {', '.join(patterns)} at {mask_passwords(config.nats_url)}", file=sys.stderr)
        return await ended
