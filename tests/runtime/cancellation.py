"""Cancels a coroutine at its awaits and those of the tasks that it starts, one run for each: it has
to end.

At each await there are two moments. The coroutine is cancelled as soon as there is the wait, or in
the tick in which what is waited for is done: there, code around it may return the result and lose
the cancellation.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, TypeAlias

from tests.kit.waiting import LIMIT_S

RESULT_S = 0.3
"""A result that has not come this long after its await does not come: the await is cancelled
without it."""

Work: TypeAlias = Coroutine[Any, Any, Any]


class _Moment:
    """The await at which `interrupt` is called, or the tick of its result if `late`."""

    def __init__(self, at: int, late: bool) -> None:
        self._left = at
        self._late = late
        self.interrupt: Callable[[], object] = lambda: None
        self.awaits = asyncio.Event()
        """The await has come."""
        self.interrupted = asyncio.Event()

    def suspended(self, awaited: "asyncio.Future[Any] | None") -> None:
        """Counts an await. None: for the next tick."""
        self._left -= 1
        if self._left != 0:
            return
        self.awaits.set()
        if self._late and awaited is not None:
            awaited.add_done_callback(self._interrupt)  # before the callback of the task that waits
        else:
            self._interrupt()

    def _interrupt(self, _done: object = None) -> None:
        self.interrupted.set()
        self.interrupt()


class _Stepped:
    """Awaits `work`, step by step."""

    def __init__(self, work: Work, moment: _Moment) -> None:
        self._work = work
        self._moment = moment

    def __await__(self) -> Generator[Any, None, Any]:
        error: BaseException | None = None
        while True:
            try:
                awaited = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as end:
                return end.value
            self._moment.suspended(awaited)
            try:
                yield awaited
                error = None
            except BaseException as thrown:
                error = thrown


async def _run(work: Work, at: int, late: bool) -> None:
    """Runs `work` until it ends."""
    loop, before, moment = asyncio.get_running_loop(), asyncio.all_tasks(), _Moment(at, late)

    async def step(coroutine: Work) -> Any:
        return await _Stepped(coroutine, moment)

    def stepped(loop: asyncio.AbstractEventLoop, coroutine: Any, /, **kw: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(step(coroutine), loop=loop, **kw)
        task.add_done_callback(
            lambda _: coroutine.close()
        )  # of a task that was cancelled before its first step
        return task

    events = [(moment.awaits, LIMIT_S), (moment.interrupted, RESULT_S)]
    waits = [(asyncio.create_task(event.wait()), timeout_s) for event, timeout_s in events]
    loop.set_task_factory(stepped)
    try:
        task = asyncio.create_task(work)
        moment.interrupt = task.cancel
        for wait, timeout_s in waits:
            await asyncio.wait({task, wait}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            wait.cancel()
        if not moment.interrupted.is_set():  # it has ended, or what is waited for does not come
            moment.interrupt()
        await asyncio.wait({task}, timeout=LIMIT_S)
    finally:
        loop.set_task_factory(None)
    where = f"await {at}, {'in the tick of its result' if late else 'at once'}"
    assert task.done(), f"cancelled at {where}, it goes on"
    if not task.cancelled() and (error := task.exception()) is not None:
        raise AssertionError(f"cancelled at {where}, it raises {error!r}") from error
    left = asyncio.all_tasks() - before  # the runner of a command cancels them, and waits for them
    for other in left:
        other.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=LIMIT_S)
    assert not left, f"cancelled at {where}, it leaves tasks that go on: {left}"
    assert moment.awaits.is_set(), f"await {at} does not come"


async def cancel_at(make: Callable[[], Work], awaits: Iterable[int]) -> None:
    """Runs `make()` once for each of these awaits, by their numbers from 1 on, and each moment. All
    of them must come."""
    for at in awaits:
        for late in (False, True):
            await _run(make(), at, late)
