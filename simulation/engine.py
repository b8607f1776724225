"""The engine of simulated workers: the script engine, which can also be made to fail."""

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from schemas.errors import EngineFailed
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineRequest, Sink
from services.worker.engines.open_turns import EngineTurn
from turnwire_tools.script.engine import ScriptEngine
from turnwire_tools.script.ticker import now_us

HANG_STEP_US = 100_000
"""How often an engine that hangs looks whether it still does."""


class SimEngine(ScriptEngine):
    """Plays output that is part of the prompts."""

    def __init__(self, config: WorkerConfig, on_prompt: Callable[[Sequence[int]], None]) -> None:
        """`on_prompt`: called with the prompt of each turn that begins here."""
        super().__init__(config)
        self._on_prompt = on_prompt
        self._opened: list[EngineTurn] = []
        self._hangs_until_us = 0

    @override
    def open(self, request: EngineRequest, sink: Sink) -> EngineTurn:
        turn = super().open(request, sink)
        if not request.resumed:
            self._on_prompt(request.token_ids)
        self._opened = [*(earlier for earlier in self._opened if not earlier.ended), turn]
        return turn

    @override
    def _step(self, stream: Any, now: int) -> int | None:
        if now < self._hangs_until_us:
            return now + HANG_STEP_US
        return super()._step(stream, now)

    def fail_turns(self) -> None:
        """Ends all turns with errors."""
        for turn in self._opened:
            turn.fail(EngineFailed("the simulation fails it"))

    def die(self) -> None:
        """Ends the engine."""
        self._turns.die("the simulation ends it")

    def hang(self, seconds: float) -> None:
        """Makes no step for a time."""
        self._hangs_until_us = now_us() + round(seconds * 1e6)
