"""The weights of one server: pauses it, has it load others, and notices what somebody else does.

A server says which weights have decoded a turn with the turn's end. Until then, `TurnWeights` says
what is sure: a turn that was sent before a change has the old version up to the change, and then
an unknown one.
"""

import asyncio
from contextlib import suppress

from schemas.errors import EngineFailed, Invalid
from schemas.events import UNKNOWN_WEIGHTS
from services.worker.engine import EngineDelta, EngineDied
from services.worker.engines.open_turns import OpenTurns
from services.worker.engines.remote.checkpoint import check_checkpoint
from services.worker.engines.remote.dialect import UpdatableServer
from services.worker.engines.remote.http import Refused, ServerHttp, Unreachable
from services.worker.engines.remote.server_watch import ServerWatch

LOOK_S = 1.0
"""Interval in which a server is asked for its weights."""


class ServerWeights:
    """The weights of the server of one engine, which may have none that change."""

    def __init__(self, http: ServerHttp, watch: ServerWatch, turns: OpenTurns) -> None:
        self.version = 0
        """The newest one that is known."""
        self._http = http
        self._watch = watch
        self._turns = turns
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._is_stopped_elsewhere = False
        self._was_stopped_elsewhere = False
        """Whether somebody else had paused the server before the last pause of this worker."""
        self._loaded = 0, ""
        """Version and source of the weights that were loaded last."""
        self._updates = 0
        self._following: asyncio.Task[None] | None = None

    async def begin(self, server: UpdatableServer, source: str) -> None:
        """Asks for the version. `source`: of the weights that the server has started with. Raises
        EngineFailed if the server is paused, Unreachable, Refused."""
        self._loaded = 0, source
        state = await server.weights(self._http)
        if state is None:
            return
        if state.paused:
            raise EngineFailed(f"{self._http.url} is paused: resume it there")
        self.version = state.version
        self._following = asyncio.create_task(self._follow(server))

    def close(self) -> None:
        """Stops."""
        if self._following is not None:
            self._following.cancel()

    async def until_going_on(self) -> None:
        """Returns when the engine is not paused."""
        await self._goes_on.wait()

    async def pause(self, server: UpdatableServer, *, abort: bool) -> None:
        """As `UpdatableEngine.pause`."""
        if self._following is None:
            raise Invalid(f"the inference server cannot be paused: it needs {server.weights_need}")
        was_paused = not self._goes_on.is_set()
        self._goes_on.clear()
        self._hold()
        if abort:
            self._turns.abort("the engine was paused")
        try:
            if not was_paused:
                state = await server.weights(self._http)
                self._was_stopped_elsewhere = state is not None and state.paused
            await server.pause(self._http, abort=abort)
        except (Refused, Unreachable) as error:
            if not was_paused:
                self._goes_on.set()
                self._hold()
            raise EngineFailed(f"the inference server was not paused: {error}") from error

    async def resume(self, server: UpdatableServer, *, only_own: bool) -> None:
        """As `UpdatableEngine.resume`."""
        try:
            if not (only_own and self._was_stopped_elsewhere):
                await server.resume(self._http)
            await self._look(server)
        except (Refused, Unreachable) as error:
            raise EngineFailed(f"the inference server was not resumed: {error}") from error
        self._goes_on.set()
        self._hold()

    async def update(self, server: UpdatableServer, source: str, version: int) -> None:
        """As `UpdatableEngine.update_weights`."""
        await asyncio.to_thread(check_checkpoint, source, self._loaded[1])
        self._watch.is_loading = True
        try:
            await server.update_weights(self._http, source, version)
            self.version, self._loaded = version, (version, source)
        except (EngineDied, Refused, Unreachable) as error:
            if await self._load_again(server):
                raise EngineFailed(f"{error}; the old weights are loaded again") from error
            self._turns.die(str(error))
            raise self._turns.died() from error
        finally:
            self._updates += 1
            self._watch.is_loading = False

    async def _load_again(self, server: UpdatableServer) -> bool:
        """Loads the weights from before an update that has failed. Returns False if they are not
        known, or fail, too."""
        version, source = self._loaded
        if version != self.version:
            return False  # those of somebody else
        try:
            await server.update_weights(self._http, source, version)
        except (EngineFailed, Refused, Unreachable):
            return False
        return True

    async def _follow(self, server: UpdatableServer) -> None:
        while not self._turns.over:
            await asyncio.sleep(LOOK_S)
            with suppress(Refused, Unreachable):
                await self._look(server)

    async def _look(self, server: UpdatableServer) -> None:
        """Asks for the weights, unless they are updated meanwhile."""
        before = self._updates
        state = await server.weights(self._http)
        if state is not None and before == self._updates and not self._watch.is_loading:
            self.version = state.version
            self._is_stopped_elsewhere = state.paused
            self._hold()

    def _hold(self) -> None:
        self._watch.hold(not self._goes_on.is_set() or self._is_stopped_elsewhere)


class TurnWeights:
    """The weights that decode one turn, which is sent now."""

    def __init__(self, server: ServerWeights) -> None:
        self._server = server
        self._version = server.version
        self._noted = 0

    def note(self, delta: EngineDelta) -> None:
        """Sets the version of a delta's tokens. What the server has said at the end of the turn
        is left out where it is nothing new."""
        if delta.ids or delta.stop_id is not None:
            version = max(self._version, UNKNOWN_WEIGHTS)
            if self._version != self._server.version:
                version = UNKNOWN_WEIGHTS
            if version != self._noted:
                self._noted = delta.weights = version
        spans = delta.spans
        if (
            spans is not None
            and self._noted == self._version
            and [span.version for span in spans] in ([], [self._version])
        ):
            delta.spans = None
