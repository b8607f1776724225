"""Cancels a coroutine at each await of it and of the tasks that it starts, one run after the other: it has to end.

At each await there are two moments. The coroutine is cancelled as soon as there is the wait, or in the tick in which
what is waited for is done: there, code around it may return the result and lose the cancellation.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias

LIMIT_S = 30.0
"""How long a run may take to end after its cancellation: as good as never on a loaded machine."""
PATIENCE_S = 1.5
"""An await after those that are sure does not come if it has not come in this time …"""
RESULT_S = 0.3
"""… and the result of an await does not come if it has not come in this time."""

Work: TypeAlias = Coroutine[Any, Any, Any]
Interrupt: TypeAlias = Callable[[], object]


class _Moment:
    """The await at which `interrupt` is called."""

    def __init__(self, at: int, late: bool) -> None:
        self._left = at
        self._late = late
        self.interrupt: Interrupt = lambda: None
        self.reached = asyncio.Event()

    def suspended(self, awaited: "asyncio.Future[Any] | None") -> None:
        """Counts an await. None: for the next tick."""
        self._left -= 1
        if self._left == 0 and self._late and awaited is not None:
            awaited.add_done_callback(self._reach)  # before the callback of the task that waits
        elif self._left == 0:
            self._reach()

    def _reach(self, _done: object = None) -> None:
        self.reached.set()
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


async def _run(work: Work | tuple[Work, Interrupt], at: int, late: bool, patience_s: float) -> bool:
    """Runs `work` until it ends; returns whether it was interrupted at this moment."""
    loop, before, moment = asyncio.get_running_loop(), asyncio.all_tasks(), _Moment(at, late)
    main, interrupt = work if isinstance(work, tuple) else (work, None)

    async def step(coroutine: Work) -> Any:
        return await _Stepped(coroutine, moment)

    def stepped(loop: asyncio.AbstractEventLoop, coroutine: Any, /, **kw: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(step(coroutine), loop=loop, **kw)
        task.add_done_callback(lambda _: coroutine.close())  # of a task that was cancelled before its first step
        return task

    noticed = asyncio.create_task(moment.reached.wait())
    loop.set_task_factory(stepped)
    try:
        task = asyncio.create_task(main)
        moment.interrupt = interrupt or task.cancel
        await asyncio.wait({task, noticed}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        noticed.cancel()
        reached = moment.reached.is_set()
        if not reached:  # it has ended, or what is waited for does not come
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
    return reached


async def cancel_everywhere(make: Callable[[], Work | tuple[Work, Interrupt]], *, least: int, most: int = 1000) -> None:
    """Runs `make()` once for each await and moment, for at most `most` awaits; there are at least `least`.

    `make` may return a function, too, that is called in place of the task's `cancel`.
    """
    for at in range(1, most + 1):
        if not await _run(make(), at, False, LIMIT_S if at <= least else PATIENCE_S):
            assert at > least, f"there are {at - 1} awaits only"
            return
        await _run(make(), at, True, RESULT_S)
