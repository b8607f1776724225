"""Observes the turns of one preprocessor: its metrics, log lines and spans of what happens to a
turn, each in one place."""

from time import perf_counter, time_ns
from typing import Final

from schemas.control import AGENT_TOKENS, ModelCard, ToolWeight
from schemas.errors import ErrorInfo, TurnwireError, as_turnwire_error
from schemas.requests import TurnRequest
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.prompt.prompt_maker import Prompt
from services.preprocessor.prompt.tool_weights import HeaviestTools
from services.runtime.observability.metrics import step_histogram
from services.runtime.observability.scope import NO_SCOPE, Attributes, Scope
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.process import Process

_EVENTS: Final = {"normalize": "strip", "restore": "ledger"}
"""Events of the span `prepare` that have another name than their step (docs/tracing.md)."""


def warn_of_limits(card: ModelCard, log: FilteringBoundLogger) -> None:
    """Logs why coding agents cannot work with the model."""
    if not card.tools:
        log.warning(
            "preprocessor.no_tools",
            model=card.name,
            effect="the chat template lists no tools: requests with tools get status 400",
            remedy="name a template that lists them (chat_template), or another model",
        )
    if card.max_model_len < AGENT_TOKENS:
        log.warning(
            "preprocessor.small_window",
            model=card.name,
            max_model_len=card.max_model_len,
            effect=f"too small for coding agents, which need {AGENT_TOKENS:,} tokens",
            remedy="serve a larger window (max_model_len), or another model",
        )


class PreprocessorObserver:
    """The metrics, log and traces of one preprocessor's turns."""

    def __init__(self, process: Process, ledger: LedgerReader) -> None:
        self.process = process
        self.log = process.log
        self.ledger = ledger
        self.tools = HeaviestTools()
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

    def observe_attempt(self, request: TurnRequest) -> "AttemptObserver":
        """Begins to observe an attempt at a turn, which arrives now."""
        return AttemptObserver(self, request, self.process.scope(request.trace))


class AttemptObserver:
    """Records one attempt at a turn, from its arrival to the worker that takes it: metrics, log
    lines, a span of its preparation, with the steps, and one of its placement."""

    def __init__(
        self, preprocessor: PreprocessorObserver, request: TurnRequest, scope: Scope
    ) -> None:
        self._preprocessor = preprocessor
        self._request = request
        self._since = perf_counter()  # the loop's time has milliseconds
        """When the present step began."""
        self._scope = scope
        self._span = "prepare"
        """The present span."""
        self._started = time_ns()
        self._events: list[tuple[str, int, Attributes]] = []
        """Steps of the preparation; refusals of the placement."""
        self._hold: Attributes = {}

    def step(self, name: str) -> None:
        """Notes a step of the prompt (`OnStep`), on any thread. A repeated step replaces its first
        time and the steps after it."""
        if self._scope is NO_SCOPE:
            return
        name = _EVENTS.get(name, name)
        names = [noted for noted, _, _ in self._events]
        if name in names:
            del self._events[names.index(name) :]
        # Events: as spans, they would be a quarter of what tracing costs.
        self._events.append((name, time_ns(), {}))

    def prompt_made(self, prompt: Prompt) -> None:
        """Notes that the prompt is made; from now on the turn is placed."""
        now = perf_counter()
        preprocessor = self._preprocessor
        preprocessor.prepare_s.observe(now - self._since)
        self._since = now
        preprocessor.ledger.count(prompt.encoded)
        tokens = prompt.rendered.tools.tokens
        if tokens:
            agent = self._request.conversation.client.user_agent or ""
            weight = ToolWeight(tokens, len(prompt.ids), agent.partition(" ")[0])
            preprocessor.tools.note(weight, now)

        if self._scope is not NO_SCOPE:
            self._record_span(_prompt_details(prompt))
            self._span = "place"
            self._started = time_ns()
            self._events = []

    def held(self, turn: str, seconds: float) -> None:
        """Notes that the turn waited until another one had computed the beginning of its prompt."""
        self._preprocessor.held_s.observe(seconds)
        self._preprocessor.log.info(
            "preprocessor.held", turn=self._request.turn, held_for=turn, held_s=seconds
        )
        self._hold = {"turnwire.held_for": turn, "turnwire.held_s": seconds}

    def refused(self, worker: str, error: ErrorInfo) -> None:
        """Notes that a worker did not take the turn."""
        details = {"turnwire.worker": worker, "error.type": error.kind}
        self._events.append(("turnwire.refused", time_ns(), details))

    def placed(self, worker: str, parser: str) -> None:
        """Notes that a worker has the turn."""
        self._preprocessor.place_s.observe(perf_counter() - self._since)
        if self._scope is not NO_SCOPE:
            self._record_span({"turnwire.worker": worker, "turnwire.parser": parser})

    def failed(self, error: Exception) -> ErrorInfo:
        """Notes that the turn cannot be served; called where the error is handled. Returns what
        the frontend gets."""
        if not isinstance(error, TurnwireError):
            self._preprocessor.log.exception("preprocessor.turn_failed", turn=self._request.turn)
        info = as_turnwire_error(error, "the prompt could not be prepared").info
        self._record_span({}, info.kind)
        return info

    def cancelled(self) -> None:
        """Notes that the turn was cancelled."""
        self._record_span({"turnwire.cancelled": True})

    def _record_span(self, details: Attributes, error: str | None = None) -> None:
        """Records the present span, which ends now."""
        details = {"turnwire.attempt": self._request.attempt, **self._hold, **details}
        self._scope.record(
            self._span, self._started, time_ns(), details, error=error, events=self._events
        )


def _prompt_details(prompt: Prompt) -> Attributes:
    details: dict[str, str | int] = {"gen_ai.usage.input_tokens": len(prompt.ids)}
    encoded = prompt.encoded
    if prompt.rendered.tools.tokens:
        details["turnwire.tools.tokens"] = prompt.rendered.tools.tokens
    if encoded.outcome:
        details["turnwire.ledger.outcome"] = encoded.outcome
        details["turnwire.ledger.tokens"] = encoded.reused
    return details
