"""Cancels a coroutine at each of its suspensions, as a signal does to a command or a service: it must end at once."""

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LIMIT_S = 1.0
"""From the cancellation until the event loop is closed."""
TRIALS = 3
"""On a busy machine a trial may take longer than it should."""

Make = Callable[[], Coroutine[Any, Any, Any]]


def cancel_everywhere(make: Make, *, most: int = 1000, wait_for_threads: bool = True) -> int:
    """Runs a coroutine again and again, each time in an event loop of its own, and cancels it at its first suspension,
    then at its second, until it ends by itself before that. Each time once while it waits, and once in the tick in
    which what it waits for is done.

    `wait_for_threads`: whether the program waits for threads of the loop's executor when it ends.

    Returns the number of suspensions, at most `most`. Raises AssertionError where the coroutine went on for more than
    `LIMIT_S`, or ended otherwise than by the cancellation.
    """
    for at in range(most):
        if not _cancel_at(make, at, late=False, threads=wait_for_threads):
            return at
        _cancel_at(make, at, late=True, threads=wait_for_threads)
    return most


def _cancel_at(make: Make, at: int, *, late: bool, threads: bool) -> bool:
    """Returns whether the coroutine came to this suspension."""
    for trial in range(TRIALS):
        run = _Run(at, late=late)
        with asyncio.Runner() as runner:
            if not threads:
                runner.get_loop().set_default_executor(_UnawaitedThreads())
            try:
                runner.run(run.main(make))
            except asyncio.CancelledError:
                ending = "cancelled"
            except Exception as error:
                ending = repr(error)
            else:
                ending = "returned"
        if run.cancelled_at is None:
            return False
        where = f"suspension {at}, {'when that was over' if late else 'while it waited'}, in {run.place}"
        assert ending == "cancelled", f"{ending} after a cancellation at {where}"
        took = time.monotonic() - run.cancelled_at
        if took <= LIMIT_S:
            break
        assert trial < TRIALS - 1, f"{took:.1f} s after a cancellation at {where}"
    return True


class _UnawaitedThreads(ThreadPoolExecutor):
    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


class _Run:
    """One run of a coroutine, which is cancelled at one of its suspensions."""

    def __init__(self, at: int, *, late: bool) -> None:
        self._at = at
        self._late = late
        self.cancelled_at: float | None = None
        self.place = ""

    async def main(self, make: Make) -> None:
        await self._steps(make())

    @types.coroutine
    def _steps(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, None, None]:
        count, error = 0, None
        while True:
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration:
                return
            if count == self._at:
                self.place = _innermost(work)
                self._cancel(waits_for)
            count, error = count + 1, None
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown

    def _cancel(self, waits_for: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel(_: object) -> None:
            self.cancelled_at = time.monotonic()
            task.cancel()

        if self._late and waits_for is not None:
            waits_for.add_done_callback(cancel)  # before the task's own callback, which resumes it
        else:
            cancel(None)


def _innermost(work: Any) -> str:
    """The function that waits."""
    name = ""
    while work is not None and (frame := getattr(work, "cr_frame", None)) is not None:
        name, work = f"{frame.f_code.co_qualname}:{frame.f_lineno}", work.cr_await
    return name
