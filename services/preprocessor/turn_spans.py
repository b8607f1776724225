"""Records the spans of one attempt at a turn in the preprocessor: preparation with its steps, and
placement."""

from time import time_ns
from typing import TYPE_CHECKING

from typing_extensions import override

from services.preprocessor.prompt import Prompt

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Attributes, Scope


class NoSpans:
    """The spans of an attempt that is not traced: none."""

    def step(self, name: str) -> None:
        """Notes that a step begins, on any thread. A repeated step replaces its first time and the
        steps after it."""

    def prepared(self, prompt: Prompt) -> None:
        """Records the preparation; from now on the turn is placed."""

    def held(self, turn: str, seconds: float) -> None:
        """Notes that the turn waited until another one had computed the beginning of its prompt."""

    def refused(self, worker: str, kind: str) -> None:
        """Notes that a worker did not take the turn."""

    def placed(self, worker: str, parser: str) -> None:
        """Records the placement: the worker has the turn."""

    def failed(self, kind: str) -> None:
        """Records that the turn was refused, in its present step."""

    def cancelled(self) -> None:
        """Records that the turn was cancelled, in its present step."""


NO_SPANS = NoSpans()


class TurnSpans(NoSpans):
    """The times and spans of one attempt that is traced."""

    def __init__(self, scope: "Scope", attempt: int) -> None:
        self._scope = scope
        self._attempt: Attributes = {"turnwire.attempt": attempt}
        self._started = time_ns()
        self._steps: list[tuple[str, int]] = []
        """Each step of the preparation and its start."""
        self._placing = 0
        self._refusals: list[tuple[str, int, Attributes]] = []

    @override
    def step(self, name: str) -> None:
        names = [noted for noted, _ in self._steps]
        if name in names:
            del self._steps[names.index(name) :]
        self._steps.append((name, time_ns()))

    @override
    def prepared(self, prompt: Prompt) -> None:
        details: dict[str, str | int] = {"gen_ai.usage.input_tokens": len(prompt.ids)}
        if prompt.found is not None:
            details["turnwire.ledger.outcome"] = prompt.found.outcome
            details["turnwire.ledger.tokens"] = prompt.found.reused
        self._record_preparation(details)

    @override
    def held(self, turn: str, seconds: float) -> None:
        self._attempt = {**self._attempt, "turnwire.held_for": turn, "turnwire.held_s": seconds}

    @override
    def refused(self, worker: str, kind: str) -> None:
        details = {"turnwire.worker": worker, "error.type": kind}
        self._refusals.append(("turnwire.refused", time_ns(), details))

    @override
    def placed(self, worker: str, parser: str) -> None:
        details: Attributes = {
            **self._attempt,
            "turnwire.worker": worker,
            "turnwire.parser": parser,
        }
        self._scope.record("place", self._placing, time_ns(), details, events=self._refusals)

    @override
    def failed(self, kind: str) -> None:
        self._broken_off({}, kind)

    @override
    def cancelled(self) -> None:
        self._broken_off({"turnwire.cancelled": True})

    def _broken_off(self, details: "Attributes", error: str | None = None) -> None:
        if self._placing:
            details = {**self._attempt, **details}
            self._scope.record(
                "place", self._placing, time_ns(), details, error=error, events=self._refusals
            )
        else:
            self._record_preparation(details, error)

    def _record_preparation(self, details: "Attributes", error: str | None = None) -> None:
        end = self._placing = time_ns()
        # Events: as spans, they would be a quarter of what tracing costs.
        steps: list[tuple[str, int, Attributes]] = [
            (name, start, {}) for name, start in self._steps
        ]
        details = {**self._attempt, **details}
        self._scope.record("prepare", self._started, end, details, error=error, events=steps)
