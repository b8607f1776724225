"""Decodes a turn before an engine serves, to try it."""

import asyncio

from msgspec import Struct

from schemas.errors import TurnwireError
from services.worker.engine import Engine, EngineDelta, EngineRequest


class TrialOutput(Struct, frozen=True):
    """The output of a trial."""

    ids: list[int]
    logprobs: list[list[tuple[int, float]]]
    cached: int | None


class TrialSink:
    """The sink of a trial. To be made on the event loop."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[TrialOutput] = asyncio.get_running_loop().create_future()
        """Done when the turn has ended, with its error if it failed."""
        self._output = TrialOutput([], [], None)

    def put(self, delta: EngineDelta) -> None:
        """Adds an engine step's result."""
        output = self._output
        self._output = TrialOutput(
            output.ids + delta.ids,
            output.logprobs + (delta.logprobs or []),
            output.cached if delta.cached is None else delta.cached,
        )
        if delta.finish is not None and not self.ended.done():
            self.ended.set_result(self._output)

    def fail(self, error: TurnwireError) -> None:
        """Notes the error."""
        if not self.ended.done():
            self.ended.set_exception(error)


async def decode_trial(engine: Engine, request: EngineRequest) -> TrialOutput:
    """Decodes a turn. Raises as `Engine.open`, or the error of the turn."""
    trial = TrialSink()
    handle = engine.open(request, trial)
    try:
        return await trial.ended
    finally:
        handle.close()
