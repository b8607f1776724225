"""Acts on the end of a prefill: of a turn, and of a prompt that no turn has requested yet."""

from dataclasses import dataclass

from schemas.errors import TurnwireError
from schemas.requests import PrefillNotice
from services.runtime.nats.requests import after_sending
from services.runtime.process import Process
from services.worker.engine import EngineDelta
from services.worker.engine_requests import DecodingPlan
from services.worker.kv.prompt_blocks import PromptBlocks
from services.worker.kv.publisher import Kv
from services.worker.observer import WorkerObserver


@dataclass(slots=True)
class PrefillSink:
    """The sink of a prefill without a turn, which discards the engine's results."""

    turn: str
    observer: WorkerObserver

    def put(self, delta: EngineDelta) -> None:
        """Discards a result."""

    def fail(self, error: TurnwireError) -> None:
        """Logs the error."""
        self.observer.prefill_failed(self.turn, error)


@dataclass(slots=True, eq=False)
class PrefillReporter:
    """The prompt of one turn: reports that it is computed, to the index of KV blocks and to the
    preprocessor that holds back turns with the same beginning."""

    process: Process
    kv: Kv
    plan: DecodingPlan | None
    """The turn's, as long as it has no tokens."""
    blocks: PromptBlocks
    notice: str
    """The subject of the preprocessor; "": none waits."""
    is_over: bool = False
    """The prefill has ended, with or without a result."""

    def end(self, *, computed: bool) -> None:
        """Ends the prefill: with the first tokens, or at the turn's end, `computed` or not. Later
        calls do nothing."""
        if self.is_over:
            return
        self.is_over = True
        if computed:
            self.kv.record_prompt(self.blocks)
        if self.notice and self.plan is not None:  # the first token goes first
            notice = PrefillNotice(self.plan.request.turn, computed)
            after_sending(self.process.publish, self.notice, notice)
        self.plan = None

    def restart(self, plan: DecodingPlan) -> None:
        """Begins again, with other blocks: the turn is opened for other weights."""
        self.plan = plan
        self.blocks = plan.blocks

    def record_found(self, cached: int | None) -> None:
        """Reports how much of the prompt the engine found in its cache, in tokens; None: it has not
        reported it."""
        if cached is not None:
            self.kv.record_found(self.blocks, cached)

    def add_output(self, output: list[int]) -> None:
        """Reports that the cache also has the output of the turn."""
        self.kv.record_turn(self.blocks, output)
