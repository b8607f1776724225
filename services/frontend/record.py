"""What one turn took and how it ended, for metrics and the log line."""

from collections.abc import Callable

from schemas.events import Failed, Finish, TurnEvent, Usage
from services.frontend.dialects.base import failure_of
from services.frontend.metrics import FrontendMetrics


class TurnRecord:
    """Times and counts one turn. `clock` and `started` are the event loop's."""

    __slots__ = (
        "_clock",
        "_last",
        "_metrics",
        "_observe",
        "_open",
        "_started",
        "first_s",
        "model",
        "outcome",
        "prompt_tokens",
        "stream",
        "usage",
    )

    def __init__(self, metrics: FrontendMetrics, started: float, clock: Callable[[], float]) -> None:
        self.model = ""
        """The served model's name; "" until it is known."""
        self.outcome = ""
        """The finish reason, the kind of error, or `hangup`, `slow_reader`; "" while the turn runs."""
        self.stream = False
        self.prompt_tokens: int | None = None
        self.usage: Usage | None = None
        self.first_s: float | None = None
        self._metrics = metrics
        self._started = started
        self._clock = clock
        self._last = 0.0
        self._observe: Callable[[float], None] | None = None
        self._open = False

    def opened(self, model: str) -> None:
        """The model is known and the turn begins."""
        self.model = model
        self._open = True
        self._metrics.opened(model)
        self._observe = self._metrics.between(model)

    def batch(self, now: float | None = None) -> None:
        """Events are here. `now`: the loop's time, if the caller has it."""
        if now is None:
            now = self._clock()
        if self.first_s is None:
            self.first_s = now - self._started
            self._metrics.first_token(self.model, self.first_s)
        elif self._observe is not None:
            self._observe(now - self._last)
        self._last = now

    def ends(self, last: TurnEvent) -> bool:
        """Takes note of a choice's event. True if it ends its turn."""
        if not isinstance(last, Finish | Failed):
            return False
        self._end(last)
        return True

    def close(self, dialect: str) -> None:
        """The request is over."""
        if self._open:
            self._open = False
            self._metrics.closed(self.model)
        self._metrics.answered(self.model, dialect, self.outcome, self._clock() - self._started)

    @property
    def tokens(self) -> int:
        """What the request cost: tokens of the prompt that were not cached, and of the answer. Of a turn that was
        given up the answer is not known, and neither is what was cached."""
        if self.usage is None:
            return self.prompt_tokens or 0
        return self.usage.prompt - self.usage.cached + self.usage.output

    def fields(self) -> dict[str, object]:
        """For the log line."""
        fields: dict[str, object] = {"model": self.model, "stream": self.stream, "prompt_tokens": self.prompt_tokens}
        if self.first_s is not None:
            fields["ttft"] = round(self.first_s, 4)
        if self.usage is not None:
            fields["cached_tokens"] = self.usage.cached
            fields["output_tokens"] = self.usage.output
            fields["reasoning_tokens"] = self.usage.reasoning
        return fields

    def _end(self, event: Finish | Failed) -> None:
        failure = failure_of(event)
        if failure is not None:
            self.outcome = str(failure.kind)
        if isinstance(event, Finish):
            self.outcome = self.outcome or str(event.reason)
            self.usage = event.usage if self.usage is None else _sum(self.usage, event.usage)
            self._metrics.used(self.model, event.usage)


def _sum(one: Usage, other: Usage) -> Usage:
    """The usage of two choices."""
    return Usage(
        one.prompt + other.prompt,
        one.cached + other.cached,
        one.output + other.output,
        one.reasoning + other.reasoning,
    )
