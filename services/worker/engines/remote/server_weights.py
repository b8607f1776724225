"""Changes the weights of one server, pauses it, and notices changes and pauses by others.

A server reports which weights have decoded a turn at the end of the turn. Until then, `TurnWeights`
has what is sure: a turn that was sent before a change has the old version up to the change, and
then an unknown one.
"""

import asyncio
from contextlib import suppress

from schemas.errors import EngineFailed, Invalid
from schemas.events import UNKNOWN_WEIGHTS
from services.worker.engine import EngineDelta, EngineDied
from services.worker.engines.open_turns import OpenTurns
from services.worker.engines.remote.checkpoint import check_checkpoint
from services.worker.engines.remote.dialect import Dialect, WeightsState
from services.worker.engines.remote.http import HttpRefusal, ServerHttp, Unreachable
from services.worker.engines.remote.server_pause import ServerPause

LOOK_S = 1.0
"""Interval in which a server is asked for its weights."""


class ServerWeights:
    """The weights of the server of one engine, which may have none that change."""

    def __init__(
        self, http: ServerHttp, dialect: Dialect, turns: OpenTurns, pause: ServerPause
    ) -> None:
        self.version = 0
        """The newest one that is known."""
        self._http = http
        self._dialect = dialect
        self._turns = turns
        self._pause = pause
        self._loaded = 0, ""
        """Version and source of the weights that were loaded last."""
        self._updates = 0
        self._following: asyncio.Task[None] | None = None
        """None: the server has no weights that change."""

    async def begin(self, source: str) -> None:
        """Asks for the version. `source`: of the weights that the server has started with. Raises
        EngineFailed if the server is paused, Unreachable, HttpRefusal."""
        self._loaded = 0, source
        state = await self._dialect.weights(self._http)
        if state is None:
            return
        if state.paused:
            raise EngineFailed(f"{self._http.url} is paused: resume it there")
        self.version = state.version
        self._following = asyncio.create_task(self._follow())

    def close(self) -> None:
        """Stops."""
        if self._following is not None:
            self._following.cancel()

    async def begin_turn(self) -> "TurnWeights":
        """Returns the weights of a turn that is sent now. Waits while the engine is paused."""
        await self._pause.until_resumed()
        return TurnWeights(self)

    @property
    def is_paused_elsewhere(self) -> bool:
        """Whether others have paused the server, as far as is known."""
        return self._pause.is_elsewhere

    async def pause(self, *, abort: bool) -> None:
        """Pauses the server (`UpdatableEngine.pause`)."""
        self._require_routes()
        was_here = self._pause.is_here
        try:
            if not was_here:
                await self._look()
            self._pause.begin()
            if abort:
                self._turns.abort("the engine was paused")
            await self._dialect.pause(self._http, abort=abort)
        except (HttpRefusal, Unreachable) as error:
            if not was_here:
                self._pause.end()
            raise EngineFailed(f"the inference server was not paused: {error}") from error

    async def resume(self, *, only_own: bool) -> None:
        """Resumes the server (`UpdatableEngine.resume`)."""
        self._require_routes()
        try:
            if not (only_own and self._pause.is_elsewhere):
                await self._dialect.resume(self._http)
            state = await self._dialect.weights(self._http)
        except (HttpRefusal, Unreachable) as error:
            raise EngineFailed(f"the inference server was not resumed: {error}") from error
        self._pause.end()
        self._note(state)

    async def update(self, source: str, version: int) -> None:
        """Loads other weights (`UpdatableEngine.update_weights`)."""
        await asyncio.to_thread(check_checkpoint, source, self._loaded[1])
        with self._pause.loading():
            try:
                await self._dialect.update_weights(self._http, source, version)
                self.version, self._loaded = version, (version, source)
            except (EngineDied, HttpRefusal, Unreachable) as error:
                if await self._load_again():
                    raise EngineFailed(f"{error}; the old weights are loaded again") from error
                self._turns.die(str(error))
                raise self._turns.died() from error
            finally:
                self._updates += 1

    async def _load_again(self) -> bool:
        """Loads the weights from before an update that has failed. Returns False if they are not
        known, or fail, too."""
        version, source = self._loaded
        if version != self.version:
            return False  # others have loaded them
        try:
            await self._dialect.update_weights(self._http, source, version)
        except (EngineFailed, HttpRefusal, Unreachable):
            return False
        return True

    def _require_routes(self) -> None:
        """Raises Invalid for a server without weights that change."""
        if self._following is None:
            need = self._dialect.weights_need
            raise Invalid(f"the inference server cannot be paused: it needs {need}")

    async def _follow(self) -> None:
        while not self._turns.over:
            await asyncio.sleep(LOOK_S)
            with suppress(HttpRefusal, Unreachable):
                await self._look()

    async def _look(self) -> None:
        """Asks for the weights, unless they are updated meanwhile."""
        before = self._updates
        state = await self._dialect.weights(self._http)
        if before == self._updates and not self._pause.is_loading:
            self._note(state)

    def _note(self, state: WeightsState | None) -> None:
        if state is not None:
            self.version = state.version
            self._pause.observe(paused=state.paused)


class TurnWeights:
    """The weights that decode one turn, which is sent now."""

    def __init__(self, server: ServerWeights) -> None:
        self._server = server
        self._version = server.version
        self._noted = 0

    def note(self, delta: EngineDelta) -> None:
        """Sets the version of a delta's tokens. The versions that the server reports at the end of
        the turn are left out where they are known already."""
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
