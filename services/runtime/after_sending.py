"""Runs work after the messages of this tick have been sent, so that it does not delay them."""

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple

A = TypeVarTuple("A")


def after_sending(work: Callable[[*A], object], *args: *A) -> None:
    """Calls `work(*args)` two ticks from now, when the messages of this tick have been written: `FrameSender` makes
    frames at the end of a tick, and nats-py writes published messages in the next one."""
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, work, *args)
