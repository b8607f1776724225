"""The parts that engines share: open turns with a watchdog, blocking work on daemon threads, and forms of arguments."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from schemas.control import Load
from schemas.conversation import Sampling
from schemas.errors import ENGINE_DIED, Invalid, TurnwireError
from schemas.events import FinishReason
from services.worker.engine import Delta, Engine, EngineDied, EngineRequest, Sink

T = TypeVar("T")


class OpenTurn:
    """One open turn, and the handle that closes it.

    It ends once: with a terminal delta, a failure, or because it was closed. Whatever comes after that is ignored.
    """

    __slots__ = ("_put", "_released", "_sink", "_turns", "ended", "id", "task")

    def __init__(self, turns: "dict[str, OpenTurn]", turn_id: str, sink: Sink, released: Callable[[], object]) -> None:
        self.id = turn_id
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        """Made by `run`."""
        self._turns = turns
        self._sink = sink
        self._put = sink.put
        self._released = released

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, which passes an engine's results on, in a task. The end of the turn cancels it."""
        self.task = asyncio.create_task(work)

    def put(self, delta: Delta) -> None:
        """Passes on one engine step's result."""
        if not self.ended:
            if delta.finish is not None:
                self._end()
            self._put(delta)

    def fail(self, error: TurnwireError) -> None:
        """Ends the turn with an error. Turns must not share one: it holds a traceback."""
        if not self.ended:
            self._end()
            self._sink.fail(error)

    def close(self) -> None:
        """See `Handle.close`."""
        if not self.ended:
            self._end()

    def _end(self) -> None:
        self.ended = True
        del self._turns[self.id]
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        self._released()


class _FirstTurn:
    """The sink of a turn that tests an engine before it serves. Made on the loop."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the turn has ended; has its error."""

    def put(self, delta: Delta) -> None:
        """See `Sink.put`."""
        if delta.finish is not None and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: TurnwireError) -> None:
        """See `Sink.fail`."""
        if not self.ended.done():
            self.ended.set_exception(error)


async def decode_one(engine: Engine, sampling: Sampling) -> None:
    """Decodes one token, before the engine serves. Raises as `Engine.open`, and the error of the turn."""
    first = _FirstTurn()
    handle = engine.open(EngineRequest("start", [0], sampling, []), first)
    try:
        await first.ended
    finally:
        handle.close()


class OpenTurns:
    """All open turns of one engine, which the engine's death reaches. `on_death` is called behind their ends."""

    def __init__(self, engine: str, on_death: Callable[[], object] = lambda: None) -> None:
        self._engine = engine
        self._on_death = on_death
        self._turns: dict[str, OpenTurn] = {}
        self._stopped = False
        self._stepped_at = 0.0
        self._watcher: asyncio.Task[None] | None = None
        self.death: str | None = None
        """Why the engine is dead; None while it lives."""

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def over(self) -> bool:
        """Dead or stopped."""
        return self._stopped or self.death is not None

    def load(self, slots: int, queue_limit: int, kv_used: float | None) -> Load:
        """The load of an engine with so many slots; turns beyond them wait."""
        running = min(len(self._turns), slots)
        return Load(running, len(self._turns) - running, slots, queue_limit, kv_used)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the open turns."""
        return [turn.task for turn in self._turns.values() if turn.task is not None]

    def open(self, turn_id: str, sink: Sink, released: Callable[[], object] = lambda: None) -> OpenTurn:
        """A new turn. `released` is called once, when it ends, before the end is passed to the sink.

        Raises Invalid for an id that is in use, EngineDied if the engine is dead or stopped.
        """
        if self.death is not None:
            raise self.died()
        if self._stopped:
            raise EngineDied(f"the {self._engine} engine was stopped", code=ENGINE_DIED)
        if turn_id in self._turns:
            raise Invalid(f"a turn with the id {turn_id!r} is being decoded", param="id")
        if not self._turns:
            self.stepped()  # the engine was idle, not silent
        turn = self._turns[turn_id] = OpenTurn(self._turns, turn_id, sink, released)
        return turn

    def die(self, reason: str) -> None:
        """The engine is dead for good: EngineDied in every open turn, and in every later `open`."""
        if self.death is None:
            self.death = reason
            for turn in list(self._turns.values()):
                turn.fail(self.died())
            self._on_death()

    def died(self) -> EngineDied:
        """A new error for a dead engine."""
        return EngineDied(f"the {self._engine} engine died: {self.death}", code=ENGINE_DIED)

    def stepped(self) -> None:
        """Notes that the engine has run a step."""
        self._stepped_at = time.monotonic()

    def watch(self, limit_s: float, check: Callable[[], str | None], interval_s: float = 0.25) -> None:
        """From now on the engine is dead when no step comes for `limit_s` seconds while turns are open, or for the
        reason that `check` returns."""

        async def watching() -> None:
            while self.death is None:
                await asyncio.sleep(interval_s)
                if reason := check():
                    self.die(reason)
                elif self._turns and time.monotonic() - self._stepped_at > limit_s:
                    self.die(f"it reported nothing, no step in {limit_s:.0f} s")

        self._watcher = asyncio.create_task(watching())

    def stop(self) -> None:
        """Ends every open turn with CANCELLED; no new one is opened."""
        self._stopped = True
        if self._watcher is not None:
            self._watcher.cancel()
        for turn in list(self._turns.values()):
            turn.put(Delta(finish=FinishReason.CANCELLED))


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """`work()` on a thread of its own; returns its result or raises its error.

    A daemon thread, unlike those of asyncio's executor: Ctrl-C while a model loads must not wait for the load. Threads
    that `work` starts are daemons by default, too.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # SystemExit too: without a result the waiter would wait for ever
            future.set_exception(RuntimeError(f"{name}: {error!r}"))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


async def run_for(limit_s: float, work: Callable[[], object], name: str) -> None:
    """`work()` on a daemon thread, and so many seconds for it. What takes longer goes on without being waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await in_daemon_thread(work, name)


def guided_arguments(request: EngineRequest) -> dict[str, Any] | None:
    """The one keyword argument for the library's parameters of guided decoding; None where decoding is free.

    The libraries start a grammar at the first token that they decode: the rest of a turn that was broken off cannot be
    held to it.
    """
    form = request.guided
    if form is None:
        return {"grammar": request.grammar} if request.grammar and not request.resumed else None
    if form.kind == "json_schema" and form.schema is not None:
        return {"json": form.schema}
    return {"json_object": True}


def chosen_first(token: int, values: Mapping[int, float], top: int | None) -> list[tuple[int, float]]:
    """(token, log probability) of the chosen token, and of `top` others, likeliest first (None: of all)."""
    others = sorted((pair for pair in values.items() if pair[0] != token), key=lambda pair: -pair[1])
    return [(token, values.get(token, float("-inf"))), *others[:top]]
