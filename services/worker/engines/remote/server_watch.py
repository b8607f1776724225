"""Watches one server: finds out that it is gone, hangs or was started again, and that a turn gets
nothing more.

One pulse is requested at a time, for all callers: pulses in another order would look like
a server that was started again.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from services.worker.engine import EngineDied
from services.worker.engines.open_turns import EngineTurn, OpenTurns
from services.worker.engines.remote.dialect import Dialect, Pulse, ServerRequest
from services.worker.engines.remote.http import (
    HttpRefusal,
    NotListening,
    ServerHttp,
    Unreachable,
)
from services.worker.engines.remote.server_pause import ServerPause

T = TypeVar("T")

PULSE_S = 1.0
"""Interval of the pulses."""
PULSE_LIMIT_S = 5.0
MISSED_PULSES = 3
"""The number of failures in succession after which the server counts as dead."""
UNAVAILABLE = 503


class WatchedStream:
    """The stream of one turn, as the watch sees it."""

    def __init__(self, turn: EngineTurn) -> None:
        self.turn = turn
        self.last_chunk_at: float | None = None
        """The loop's time of the last chunk; None: there was none yet, and a prefill may be
        long."""


class ServerWatch:
    """The watch over the server of one engine. Its death ends the engine's turns."""

    def __init__(
        self,
        http: ServerHttp,
        dialect: Dialect,
        turns: OpenTurns,
        pause: ServerPause,
        silence_s: float,
    ) -> None:
        """`silence_s`: the longest time between two chunks of a turn."""
        self.pulse = Pulse()
        """The last one."""
        self.http = http
        self.dialect = dialect
        self._turns = turns
        self._pause = pause
        self._silence_s = silence_s
        self._streams: set[WatchedStream] = set()
        self._missed = 0
        self._got_chunk = False
        """Whether a chunk has come since the last pulse was requested."""
        self._asking: asyncio.Task[Exception | None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Starts to watch."""
        self._spawn(self.run())

    def close(self) -> None:
        """Stops. Aborts and a pulse that are on their way are dropped."""
        for task in self._tasks:
            task.cancel()

    def abort(self, call: ServerRequest) -> None:
        """Ends the turn of `call` on the server, without waiting: also where something in between
        keeps its connection."""
        abort = self.dialect.abort(call)
        if abort is not None and not self._turns.over:
            self._spawn(self._post(abort))

    async def begin(self) -> None:
        """Takes the first pulse. Raises Unreachable, HttpRefusal."""
        self.pulse = await self.dialect.pulse(self.http)

    def add(self, turn: EngineTurn) -> WatchedStream:
        """Watches the stream of a turn, until `remove`."""
        stream = WatchedStream(turn)
        self._streams.add(stream)
        return stream

    def remove(self, stream: WatchedStream) -> None:
        """Watches a stream no more."""
        self._streams.discard(stream)

    def record_chunk(self, stream: WatchedStream) -> None:
        """Records that a chunk of a turn has come."""
        stream.last_chunk_at = asyncio.get_running_loop().time()
        self._got_chunk = True
        self._turns.stepped()

    def check(self) -> None:
        """For the watchdog: a paused engine makes no steps."""
        if self._pause.explains_silence:
            self._turns.stepped()

    async def run(self) -> None:
        """Watches until the engine is over."""
        while not self._turns.over:
            self._got_chunk = False
            await asyncio.sleep(PULSE_S)
            error = await self._ask()
            # A server that drains refuses connections, and one under load is slow.
            is_alive = error is None or self._got_chunk or self._pause.is_loading
            self._missed = 0 if is_alive else self._missed + 1
            if self._missed == MISSED_PULSES:
                self._turns.die(f"the inference server does not answer: {error}")
            self._end_silent_streams()

    async def look(self, reason: EngineDied) -> None:
        """Finds out whether the server is there, after a turn ended for `reason`. Declares the
        engine dead if nothing listens there any more, or its own engine is dead."""
        error = await self._ask()
        is_dead = isinstance(error, HttpRefusal) and error.status == UNAVAILABLE
        if is_dead or isinstance(error, NotListening):
            self._turns.die(f"the inference server is gone: {reason}")

    def _end_silent_streams(self) -> None:
        """Ends turns that have begun and get nothing more, while others may go on."""
        if self._pause.explains_silence:
            return
        latest = asyncio.get_running_loop().time() - self._silence_s
        if latest < self._pause.ended_at:
            return
        for stream in list(self._streams):
            if stream.last_chunk_at is not None and stream.last_chunk_at < latest:
                limit = f"{self._silence_s:.0f} s"
                error = EngineDied(f"the inference server sent nothing of the turn for {limit}")
                stream.turn.fail(error)

    async def _ask(self) -> Exception | None:
        """Requests a pulse, or waits for the one that is requested. Returns why there is none."""
        if self._asking is None or self._asking.done():
            self._asking = self._spawn(self._request())
        return await asyncio.shield(self._asking)

    async def _request(self) -> Exception | None:
        try:
            async with asyncio.timeout(PULSE_LIMIT_S):
                pulse = await self.dialect.pulse(self.http)
        except TimeoutError:
            return Unreachable("no answer in time")
        except Exception as error:  # also of an answer that cannot be read
            return error
        self._note(pulse)
        return None

    def _note(self, pulse: Pulse) -> None:
        if pulse.started != self.pulse.started or pulse.steps < self.pulse.steps:
            self._turns.die("the inference server was started again")
        if pulse.steps != self.pulse.steps:
            self._turns.stepped()  # also in a long prefill, which sends nothing
        self.pulse = pulse

    async def _post(self, call: ServerRequest) -> None:
        with suppress(Unreachable, HttpRefusal):
            await self.http.post(call.path, call.body)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
