"""Runs blocking work of libraries on daemon threads."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def in_daemon_thread(
    name: str, work: Callable[P, T], *args: P.args, **options: P.kwargs
) -> T:
    """Runs `work(*args, **options)` on a daemon thread; returns its result or raises its error.

    Threads of asyncio's executor are not daemons, but Ctrl-C while a model loads must not wait for
    the load. Threads that `work` starts are daemons by default, too.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work(*args, **options))
        except Exception as error:
            future.set_exception(error)
        # Also SystemExit: without a result the caller would wait forever.
        except BaseException as error:
            future.set_exception(RuntimeError(f"{name}: {error!r}"))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


async def run_for(
    limit_s: float, name: str, work: Callable[P, object], *args: P.args, **options: P.kwargs
) -> None:
    """Runs `work(*args, **options)` on a daemon thread and waits for it, at most `limit_s`
    seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await in_daemon_thread(name, work, *args, **options)
