"""Observes the turns of one preprocessor: its metrics, log lines and spans of what happens to a
turn, each in one place."""

from time import perf_counter

from schemas.errors import EngineFailed, ErrorInfo, TurnwireError
from schemas.frames import TurnRequest
from services.preprocessor.ledger_reader import NoLedger
from services.preprocessor.prompt import Prompt
from services.preprocessor.turn_spans import NO_SPANS, NoSpans, TurnSpans
from services.runtime.observability.metrics import step_histogram
from services.runtime.process import Process


class PreprocessorObserver:
    """The metrics, log and traces of one preprocessor's turns."""

    def __init__(self, process: Process, ledger: NoLedger) -> None:
        self.process = process
        self.log = process.log
        self.ledger = ledger
        self.prepare_s = step_histogram(
            "prepare", "From a turn's arrival to its prompt's ids.", process.metrics
        )
        self.place_s = step_histogram(
            "place", "From a prompt's ids to the worker that takes the turn.", process.metrics
        )
        self.held_s = step_histogram(
            "held",
            "How long a turn waited for another one to compute the beginning of its prompt.",
            process.metrics,
        )

    def attempt(self, request: TurnRequest) -> "AttemptObserver":
        """Begins to observe an attempt at a turn, which arrives now."""
        scope = self.process.scope(request.trace)
        spans = NO_SPANS if scope is None else TurnSpans(scope, request.attempt)
        return AttemptObserver(self, request.turn, spans)


class AttemptObserver:
    """What happens to one attempt at a turn, from its arrival to the worker that takes it."""

    def __init__(self, preprocessor: PreprocessorObserver, turn: str, spans: NoSpans) -> None:
        self._preprocessor = preprocessor
        self._turn = turn
        self._spans = spans
        self._since = perf_counter()  # the loop's time has milliseconds
        """When the present step began."""

    def step(self, name: str) -> None:
        """Notes a step of the prompt (`OnStep`), on any thread."""
        self._spans.step(name)

    def prepared(self, prompt: Prompt) -> None:
        """Notes that the prompt is made; from now on the turn is placed."""
        now = perf_counter()
        self._preprocessor.prepare_s.observe(now - self._since)
        self._since = now
        self._preprocessor.ledger.count(prompt.found)
        self._spans.prepared(prompt)

    def held(self, turn: str, seconds: float) -> None:
        """Notes that the turn waited until another one had computed the beginning of its prompt."""
        self._preprocessor.held_s.observe(seconds)
        self._preprocessor.log.info(
            "preprocessor.held", turn=self._turn, held_for=turn, held_s=seconds
        )
        self._spans.held(turn, seconds)

    def refused(self, worker: str, error: ErrorInfo) -> None:
        """Notes that a worker did not take the turn."""
        self._spans.refused(worker, error.kind)

    def placed(self, worker: str, parser: str) -> None:
        """Notes that a worker has the turn."""
        self._spans.placed(worker, parser)
        self._preprocessor.place_s.observe(perf_counter() - self._since)

    def failed(self, error: Exception) -> ErrorInfo:
        """Notes that the turn cannot be served; called where the error is handled. Returns what
        the frontend is told."""
        if not isinstance(error, TurnwireError):
            self._preprocessor.log.exception("preprocessor.turn_failed", turn=self._turn)
            kind = type(error).__name__
            error = EngineFailed(f"the prompt could not be prepared: {kind}")
        self._spans.failed(error.info.kind)
        return error.info

    def cancelled(self) -> None:
        """Notes that the turn was cancelled."""
        self._spans.cancelled()
