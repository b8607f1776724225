"""Ends a command within a second of SIGINT or SIGTERM, wherever it waits."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from services.runtime.config.command_line import INTERRUPTED

END_S = 1.0
"""Time limit for the end of a command after a signal."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine of a command. SIGINT and SIGTERM cancel it, which raises
    KeyboardInterrupt.

    `asyncio.run` does not handle SIGTERM, nor SIGINT if the parent ignores it, as shells do for
    background jobs.
    """
    with asyncio.Runner() as runner:
        try:
            return runner.run(_run_until_signal(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _run_until_signal(main: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def cancel(_signum: int, _frame: object) -> None:
        loop.call_soon_threadsafe(task.cancel)

    if not _gets_signals():
        return await main
    before = {signum: signal.signal(signum, cancel) for signum in SIGNALS}
    try:
        return await main
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


async def status_of(status: asyncio.Future[int]) -> int:
    """Waits for an exit status; returns 0 if the command is cancelled. For commands that run until
    Ctrl-C."""
    try:
        return await status
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        return 0


@contextmanager
def time_limit() -> Iterator[None]:
    """Ends the process with status 130 if SIGINT or SIGTERM has not ended it within `END_S`.

    Python runs no signal handler while the main thread waits for a name server, and at exit it
    waits for its other threads. So a thread reads the wakeup file, to which the interpreter writes
    each signal that has a handler. An event loop with its own handlers, such as that of `turnwire
    up`, replaces that file, and has no time limit.

    SIGINT ends the command even if the parent ignores it, as shells do for background jobs.
    """
    if not _gets_signals():
        yield
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_exit_late, args=(reader,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()


def _exit_late(reader: socket.socket) -> None:
    with reader:
        while received := reader.recv(1):
            if received[0] in SIGNALS:
                time.sleep(END_S)
                os._exit(INTERRUPTED)


def _gets_signals() -> bool:
    """Whether this is the main thread: no other gets signals."""
    return threading.current_thread() is threading.main_thread()
