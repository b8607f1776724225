"""Waits for stages that are away for a moment: while the bus hangs, or until a lost process has a successor."""

import asyncio
from collections.abc import Sequence

from schemas.control import Heartbeat, Stage
from schemas.errors import RETRY_AFTER_S, Unavailable
from services.runtime.process import Process

INNER_STAGES: tuple[Stage, ...] = ("preprocessor", "worker", "parser")


class StageWait:
    """Lets requests wait until the stages that they need take work."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._changed = asyncio.Event()
        """Set for a moment when a stage may have come back."""
        process.registry.on_heartbeat(self._heartbeat)
        process.on_attached.append(self._change)
        process.on_reconnect.append(self._change)

    async def able(
        self, model: str, until: float, stages: Sequence[Stage] = INNER_STAGES, *, patient: bool = False
    ) -> None:
        """Returns when every stage takes work for a model. `until`: the loop's time. `patient`: waits also for a stage
        that is not expected back.

        Raises:
            Unavailable: a stage is missing and not expected back, or is still missing at `until`.
        """
        while (problem := self._problem(model, stages)) is not None:
            text, is_expected = problem
            if not (is_expected or patient) or asyncio.get_running_loop().time() >= until:
                raise Unavailable(text, retry_after_s=RETRY_AFTER_S)
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                pass  # what is missing now decides

    def _problem(self, model: str, stages: Sequence[Stage]) -> tuple[str, bool] | None:
        """What is missing, and whether it is expected back."""
        if self._process.cut_off:
            return "the bus between the services does not answer at the moment", True
        registry = self._process.registry
        for stage in stages:
            if not registry.able(stage, model):
                return f"no {stage} serves this model at the moment", registry.awaited(stage, model)
        return None

    def _heartbeat(self, peer: Heartbeat) -> None:
        if peer.stage != "frontend":
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed.clear()
