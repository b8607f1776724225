"""An event loop in virtual time that runs several simulated processes, each with its own queue.

A callback belongs to the process that scheduled it, by its context. A process can be frozen (its
callbacks wait), slow (a turn of its loop takes long) or killed (its callbacks are dropped). Which
process runs next is drawn from the seed; within a process the order is asyncio's. Time goes on only
when no process has anything to do.

There are no threads: work for an executor runs at once, in the turn that submits it.
"""

import asyncio
import heapq
import math
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

TICK_S = 2e-6
"""Virtual time that one turn of a process's loop takes."""
CHECK_S = 0.05
"""Virtual time between two looks at whether a run is done."""

_PROCESS: ContextVar["Machine | None"] = ContextVar("simulated process", default=None)


class Machine:
    """The operating system's view of one simulated process: its callbacks, its clock, whether it
    runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.alive = True
        self.frozen = False
        self.busy_until = 0.0
        """Until this time the process's thread is in use: its loop is slow."""
        self.stall: Callable[[], float] | None = None
        """Draws how long the next turn of the loop takes, in seconds."""
        self.prefix = ""
        """First words of its subjects, if they are those of another protocol."""
        self.skew_s = 0.0
        """Difference of its wall clock."""
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self.graveyard: list[object] = []
        """Keeps what a killed process had: its destructors must not run while others go on."""
        self.signals: dict[int, Callable[[], None]] = {}
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """The tasks that have not ended."""


def running_machine() -> Machine | None:
    """The process that runs now; None outside of all."""
    return _PROCESS.get()


class SimLoop(asyncio.BaseEventLoop):
    """The loop. `now` is the virtual time in seconds since the start of the simulation."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.now = 0.0
        self.random = random
        self.system = Machine("system")
        """Runs what no simulated process does: network, faults, judges."""
        self._machines: list[Machine] = [self.system]
        self._able: dict[Machine, None] = {}
        """Processes with callbacks that wait, unless they are frozen."""
        self._queue: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self.set_task_factory(self._new_task)
        events._set_running_loop(self)
        self.network: Any = None
        """Set by `Network`: makes connections."""
        self.world: Any = None
        """Set by `World`: product objects report to it."""

    def _new_task(
        self, loop: Any, work: Any, *, context: Context | None = None, **rest: Any
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context, **rest)
        machine = (
            context.get(_PROCESS) if context is not None else running_machine()
        ) or self.system
        if not machine.tasks and machine not in self._machines:
            self._machines.append(machine)
        machine.tasks[task] = None
        task.add_done_callback(machine.tasks.pop, context=self.system.context)
        return task

    # -- asyncio's interface

    def time(self) -> float:
        """The virtual time."""
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedules a callback of the process that runs now, or of the one that `context` belongs
        to."""
        handle = asyncio.Handle(callback, args, self, context)
        self._put(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedules a callback for a time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._queue, (when, self._number, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedules a callback for a time from now."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the queue until its time."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Runs the work at once. Its result comes in a later turn of the loop, as a thread's
        would."""
        future = self.create_future()
        try:
            result = func(*args)
        except BaseException as error:
            failure = error

            def deliver() -> None:
                if not future.done():
                    future.set_exception(failure)
        else:

            def deliver() -> None:
                if not future.done():
                    future.set_result(result)

        self.call_soon(deliver)
        return future

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Connects within the simulated network."""
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Listens within the simulated network."""
        return self.network.listen(protocol_factory, host, port)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Sets a signal handler of the process that runs now."""
        machine = running_machine() or self.system
        machine.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Removes a signal handler of the process that runs now."""
        machine = running_machine() or self.system
        return machine.signals.pop(sig, None) is not None

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Does nothing: the loop has no selector."""

    # -- running

    def run_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Runs until `done`, at most to the virtual time `limit_s`, and calls `done` every
        `CHECK_S`. Returns whether it was done."""
        check_at = self.now
        while self.now <= limit_s:
            if self.now >= check_at:
                if done():
                    return True
                check_at = self.now + CHECK_S
            if not self._run_turn():
                break
        return done()

    def resume(self, machine: Machine) -> None:
        """Lets a frozen process go on."""
        machine.frozen = False
        if machine.ready:
            self._able[machine] = None

    def _put(self, handle: asyncio.Handle) -> None:
        machine = handle._context.get(_PROCESS) or self.system  # type: ignore[attr-defined]
        if not machine.alive:
            machine.graveyard.append(handle)
            return
        machine.ready.append(handle)
        if not machine.frozen:
            self._able[machine] = None

    def _run_turn(self) -> bool:
        """One turn of the loop of one process; returns False if nothing is left to do, ever."""
        machine = self._choose()
        if machine is None:
            return self._advance()
        if machine.frozen:  # since it had something to do
            del self._able[machine]
            return True
        self.now += TICK_S
        if self._queue and self._queue[0][0] <= self.now:
            self._fire()
        ready = machine.ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()
                if machine.frozen or not machine.alive:
                    break
        if machine.stall is not None and machine.alive:
            machine.busy_until = self.now + machine.stall()
        if not ready or machine.frozen:
            self._able.pop(machine, None)
        return True

    def _choose(self) -> Machine | None:
        """The process that runs next: the network first, else one of those that can, by chance."""
        able = self._able
        if self.system in able:
            return self.system
        if not able:
            return None
        if len(able) == 1:
            (machine,) = able
            return machine if machine.busy_until <= self.now else None
        free = [machine for machine in able if machine.busy_until <= self.now]
        return free[int(self.random.random() * len(free))] if free else None

    def _advance(self) -> bool:
        """Goes on to the next event: a timer, or the end of a slow turn."""
        queue = self._queue
        while queue and queue[0][2].cancelled():
            heapq.heappop(queue)
        next_at = min((machine.busy_until for machine in self._able), default=math.inf)
        if queue:
            next_at = min(next_at, queue[0][0])
        if next_at == math.inf:
            return False
        self.now = max(self.now, next_at)
        self._fire()
        return True

    def _fire(self) -> None:
        """Moves the timers that are due to their processes."""
        queue = self._queue
        while queue and queue[0][0] <= self.now:
            timer = heapq.heappop(queue)[2]
            if not timer.cancelled():
                self._put(timer)

    def end(self) -> None:
        """Ends the loop; tasks that wait are dropped without a word."""
        for machine in self._machines:
            machine.alive = False
            for task in machine.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            machine.tasks.clear()
            machine.ready.clear()
        self._able.clear()
        self._queue.clear()
        events._set_running_loop(None)
        self.close()

    # -- faults of processes

    def kill(self, machine: Machine) -> None:
        """Ends a process: none of its callbacks runs any more."""
        machine.alive = False
        machine.graveyard += [*machine.ready, *machine.tasks]
        machine.ready.clear()
        self._able.pop(machine, None)
        for _, _, timer in self._queue:
            if timer._context.get(_PROCESS) is machine and not timer.cancelled():  # type: ignore[attr-defined]
                machine.graveyard.append((timer._callback, timer._args))  # type: ignore[attr-defined]
                timer.cancel()

    def signal(self, machine: Machine, number: int) -> None:
        """Sends a signal to a process."""
        if machine.alive and number in machine.signals:
            self.call_soon(machine.signals[number], context=machine.context)
