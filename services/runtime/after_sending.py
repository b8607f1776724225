"""Runs work after the messages of this tick have been sent, so that it does not delay them."""

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple

A = TypeVarTuple("A")


def after_sending(work: Callable[[*A], object], *arguments: *A) -> None:
    """Calls `work` when the messages of this tick have been written.

    Frames are made at the end of a tick (`FrameSender`), and nats-py writes published messages in the next one. Both
    precede work that is scheduled for the tick after the next.
    """
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, work, *arguments)
