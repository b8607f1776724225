"""Runs work after what is being sent, so that nothing that somebody waits for waits for the work."""

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple

A = TypeVarTuple("A")


def after_sending(work: Callable[[*A], object], *of: *A) -> None:
    """Calls `work` when the messages of this tick have been written.

    Frames are made at the end of a tick (`FrameSender`), and nats-py writes in the next one what was published: work
    that is scheduled now for the tick after the next comes after both.
    """
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, work, *of)
