"""Passes the messages on the bus to a function, until a signal ends the command."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from services.cli.common import UsageError
from services.cli.observer import observing
from services.cli.signals import status_of
from services.runtime.config.masking import mask_servers
from services.runtime.config.service import BusConfig
from services.runtime.nats.bus import Delivery, Handler

PATTERN = re.compile(r"(?:(?:\*|[^\s.*>]+)\.)*(?:\*|>|[^\s.*>]+)")
"""A subject of NATS with wildcards: `tw.v2.*.worker`, `tw.v2.>`."""
OnListening: TypeAlias = Callable[[], Awaitable[None]]


def check_subjects(patterns: Sequence[str]) -> None:
    """Raises UsageError for a pattern that is not a subject."""
    wrong = [pattern for pattern in patterns if not PATTERN.fullmatch(pattern)]
    if wrong:
        raise UsageError(f"not a subject of NATS: {mask_servers(wrong[0])!r}")


async def _nothing() -> None:
    """Nothing is to be done when messages arrive."""


async def follow(
    config: BusConfig,
    name: str,
    patterns: Sequence[str],
    handle: Handler,
    *,
    on_listening: OnListening = _nothing,
) -> int:
    """Passes messages to `handle` until it is cancelled or stdout's reader ends (status 0), or the
    bus is lost or the disk is full (1). `on_listening` is called once every message arrives. Raises
    as `observing`, and what `on_listening` raises."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    def received(message: Delivery) -> None:
        try:
            handle(message)
        except (BrokenPipeError, SystemExit):  # rich turns the first into the second
            end(0)
        except OSError as error:  # a full disk: a record with gaps would be worse than its end
            print(f"turnwire {name}: cannot write: {error.strerror or error}", file=sys.stderr)
            end(1)

    async with observing(config, name, on_fatal=lambda _reason: end(1)) as bus:
        for subject in patterns:
            await bus.subscribe(subject, received)
        await bus.flush()  # from now on every message arrives
        print(
            f"listening on {', '.join(patterns)} at {mask_servers(config.nats_url)}",
            file=sys.stderr,
        )
        await on_listening()
        return await status_of(ended)
