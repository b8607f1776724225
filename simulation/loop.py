"""An event loop in virtual time that runs several simulated processes, each with its own queue.

A callback belongs to the process in whose context it was scheduled. A process can be frozen (its callbacks wait), slow
(a turn of its loop takes long) or killed (its callbacks are dropped). Which process runs next is drawn from the seed;
within a process the order is asyncio's. Time goes on only when no process has anything to do.

There are no threads: work for an executor runs at once, in the turn that submits it.
"""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

TICK_S = 2e-6
"""Virtual time that one turn of a process's loop takes."""

_PROCESS: ContextVar["Machine | None"] = ContextVar("simulated process", default=None)


class Machine:
    """The operating system's view of one simulated process: its callbacks, its clock, whether it runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.alive = True
        self.frozen = False
        self.busy_until = 0.0
        """Until this time the process's thread is in use: its loop is slow."""
        self.stall: Callable[[], float] | None = None
        """Draws how long the next turn of the loop takes, in seconds."""
        self.skew_s = 0.0
        """Difference of its wall clock."""
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self.graveyard: list[object] = []
        """Keeps what a killed process had: its destructors must not run while others go on."""
        self.signals: dict[int, Callable[[], None]] = {}


def running_machine() -> Machine | None:
    """Returns the process whose callback runs now; None outside of all."""
    return _PROCESS.get()


class Livelock(Exception):
    """The processes go on without any progress of time."""


class SimLoop(asyncio.BaseEventLoop):
    """The loop. `now` is the virtual time in seconds since the start of the simulation."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.now = 0.0
        self.random = random
        self.system = Machine("system")
        """Runs what no simulated process does: network, faults, judges."""
        self._machines: list[Machine] = [self.system]
        self._queue: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self._stopped = False
        self.turns = 0
        self.network: Any = None
        """Set by `Network`: makes connections."""

    def add(self, machine: Machine) -> None:
        """Lets a process run."""
        self._machines.append(machine)

    # -- asyncio's interface ------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Returns the virtual time."""
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Schedules a callback of the process that runs now, or of the one that `context` belongs to."""
        handle = asyncio.Handle(callback, args, self, context)
        self._put(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        """Schedules a callback for a time."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._queue, (when, self._number, timer))
        timer._scheduled = True  # type: ignore[attr-defined]  # asyncio's own mark
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        """Schedules a callback for a time from now."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the queue until its time."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> "asyncio.Future[Any]":
        """Runs the work at once. Its result comes in a later turn of the loop, as a thread's would."""
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

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connects within the simulated network."""
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        """Listens within the simulated network."""
        return self.network.listen(protocol_factory, host, port)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
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
        """There is no selector to wake."""

    # -- running ------------------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Runs until `done`, at most to the virtual time `limit_s`. Returns whether it was done.

        Raises Livelock if callbacks go on and on at one time.
        """
        events._set_running_loop(self)
        try:
            while not done():
                if self.now > limit_s:
                    return False
                if not self._run_turn():
                    return done()
            return True
        finally:
            events._set_running_loop(None)

    def _put(self, handle: asyncio.Handle) -> None:
        machine = handle._context.get(_PROCESS) or self.system  # type: ignore[attr-defined]
        if machine.alive:
            machine.ready.append(handle)
        else:
            machine.graveyard.append(handle)

    def _run_turn(self) -> bool:
        """One turn of the loop of one process; returns False if nothing is left to do, ever."""
        able = [one for one in self._machines if one.ready and not one.frozen and one.busy_until <= self.now]
        if not able:
            return self._advance()
        self._due()
        machine = able[0] if len(able) == 1 else able[int(self.random.random() * len(able))]
        self.turns += 1
        self.now += TICK_S
        ready = machine.ready
        for _ in range(len(ready)):
            if not machine.alive or machine.frozen:
                break
            handle = ready.popleft()
            if not handle._cancelled:  # type: ignore[attr-defined]
                handle._run()  # type: ignore[attr-defined]
        if machine.stall is not None:
            machine.busy_until = self.now + machine.stall()
        return True

    def _advance(self) -> bool:
        """Goes on to the next event: a timer, or the end of a slow turn."""
        times = [one.busy_until for one in self._machines if one.ready and not one.frozen and one.busy_until > self.now]
        queue = self._queue
        while queue and queue[0][2]._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(queue)
        if queue:
            times.append(queue[0][0])
        if not times:
            return False
        self.now = max(self.now, min(times))
        self._due()
        return True

    def _due(self) -> None:
        """Moves the timers that are due to their processes."""
        queue = self._queue
        while queue and queue[0][0] <= self.now:
            timer = heapq.heappop(queue)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer._cancelled:  # type: ignore[attr-defined]
                self._put(timer)

    # -- faults of processes ------------------------------------------------------------------------------------------

    def kill(self, machine: Machine) -> None:
        """Ends a process: none of its callbacks runs any more."""
        machine.alive = False
        machine.graveyard += machine.ready
        machine.ready.clear()
        self._machines.remove(machine)
        for _, _, timer in self._queue:
            if timer._context.get(_PROCESS) is machine and not timer._cancelled:  # type: ignore[attr-defined]
                machine.graveyard.append((timer._callback, timer._args))  # type: ignore[attr-defined]
                timer.cancel()

    def signal(self, machine: Machine, number: int) -> None:
        """Sends a signal to a process."""
        if machine.alive and number in machine.signals:
            self.call_soon(machine.signals[number], context=machine.context)
