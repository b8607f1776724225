"""An engine's turn as an iterator: what tests read in place of a sink."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from schemas.errors import TurnwireError
from services.worker.engine import Engine, EngineDelta, EngineRequest


class Listener:
    """A sink that keeps all it hears, and holds the engine to the contract."""

    def __init__(self) -> None:
        self.deltas: deque[EngineDelta] = deque()
        self.error: TurnwireError | None = None
        self.opened = False
        self.ended = False
        self.broken: str | None = None
        """What the engine did against the contract; not raised where the engine would catch it."""
        self._heard = asyncio.Event()

    def put(self, delta: EngineDelta) -> None:
        self._check()
        self.deltas.append(delta)
        self.ended = delta.finish is not None
        self._heard.set()

    def fail(self, error: TurnwireError) -> None:
        self._check()
        self.error = error
        self.ended = True
        self._heard.set()

    def _check(self) -> None:
        if not self.opened:
            self.broken = "the sink heard something before `open` had returned"
        if self.ended:
            self.broken = "the sink heard something after the end"

    async def get(self) -> EngineDelta:
        """The next delta; raises what the turn failed with."""
        while not self.deltas:
            if self.error is not None:
                raise self.error
            self._heard.clear()
            await self._heard.wait()
        return self.deltas.popleft()


async def listen(engine: Engine, request: EngineRequest) -> AsyncGenerator[EngineDelta, None]:
    """Opens the turn with the first step; leaving the iterator closes it."""
    listener = Listener()
    handle = engine.open(request, listener)
    listener.opened = True
    try:
        while True:
            delta = await listener.get()
            yield delta
            if delta.finish is not None:
                return
    finally:
        handle.close()
        assert listener.broken is None, listener.broken
