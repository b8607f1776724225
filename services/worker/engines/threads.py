"""Blocking work of engines on threads that do not hold up the end of the process."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """`work()` on a thread of its own; returns or raises what it does.

    A daemon thread, unlike those of asyncio's executor: Ctrl-C while a model loads must not wait for the load. Threads
    that `work` starts are daemons, too, unless they say otherwise.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:  # StopIteration and SystemExit, too: the waiter must hear of everything
            error = raised if isinstance(raised, Exception) else RuntimeError(f"{name}: {raised!r}")
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
