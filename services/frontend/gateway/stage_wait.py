"""Waits for stages that cannot be reached at the moment: the bus hangs, or a lost process has no
successor yet."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from schemas.control import INNER_STAGES, Heartbeat, Stage
from schemas.errors import RETRY_AFTER_S, Unavailable
from services.runtime.process import Process


class _Problem(NamedTuple):
    """Why a request cannot be served."""

    text: str
    is_temporary: bool
    """The missing stage is expected back."""


class StageWait:
    """Lets requests wait until the stages that they need take work."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._changed = asyncio.Event()
        """Set and cleared at once when a stage may be back: wakes all waiting requests."""
        process.registry.on_heartbeat.append(self._on_heartbeat)
        process.on_attached.append(self._wake)
        process.on_reconnect.append(self._wake)

    async def wait_until_able(
        self,
        model: str,
        until: float,
        stages: Sequence[Stage] = INNER_STAGES,
        *,
        patient: bool = False,
    ) -> None:
        """Returns when every stage takes work for a model.

        Args:
            until: the loop's time up to which it waits.
            patient: wait also for a stage that is not expected back.

        Raises:
            Unavailable: a stage is missing and not expected back, or is still missing at `until`.
        """
        while True:
            problem = self._problem(model, stages)
            if problem is None:
                return
            may_end = problem.is_temporary or patient
            if not may_end or asyncio.get_running_loop().time() >= until:
                raise Unavailable(problem.text, retry_after_s=RETRY_AFTER_S)
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                pass  # the next check decides

    def _problem(self, model: str, stages: Sequence[Stage]) -> _Problem | None:
        """Returns what is missing; None if nothing is."""
        if self._process.cut_off:
            text = "the bus between the services does not answer at the moment"
            return _Problem(text, is_temporary=True)
        registry = self._process.registry
        for stage in stages:
            if not registry.able(stage, model):
                text = f"no {stage} serves this model at the moment"
                return _Problem(text, is_temporary=registry.awaited(stage, model))
        return None

    def _on_heartbeat(self, peer: Heartbeat) -> None:
        if peer.stage != "frontend":
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed.clear()
