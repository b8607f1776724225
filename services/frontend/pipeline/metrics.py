"""Measures turns: the frontend's metrics, and the record of one request for them and for the access log.

Metrics have the names of the field with `turnwire_` before them, and vLLM's bucket edges, so that dashboards carry
over.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily

from schemas.events import Failed, Finish, TurnEvent, Usage
from services.frontend.apis.base import failure_of

FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class FrontendMetrics:
    """The metrics of one process, in its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: Sequence[str] = ("model",)) -> Callable[..., Counter]:
            return cache(Counter(name, text, labels, registry=registry).labels)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Callable[..., Histogram]:
            return cache(Histogram(name, text, ["model"], registry=registry, buckets=buckets).labels)

        # Cached, because `labels` takes a lock, 1.2 us a time, nine times a request; there are few labels.
        self._requests = counter("turnwire_requests", "Requests, by how they ended.", ("model", "dialect", "outcome"))
        self.running = cache(
            Gauge("turnwire_requests_running", "Turns that are open.", ["model"], registry=registry).labels
        )
        self.first_token = histogram(
            "turnwire_time_to_first_token_seconds", "From a request to its first event.", FIRST_TOKEN_S
        )
        self._whole = histogram(
            "turnwire_e2e_request_latency_seconds", "From a request to the end of its answer.", WHOLE_S
        )
        self._prompt = counter("turnwire_prompt_tokens", "Tokens of prompts.")
        self._output = counter("turnwire_generation_tokens", "Tokens decoded.")
        self._queries = counter(
            "turnwire_prefix_cache_queries_tokens", "Prompt tokens that were looked up in the prefix cache."
        )
        self._hits = counter("turnwire_prefix_cache_hits_tokens", "Prompt tokens that were found in the prefix cache.")
        self.between_tokens = TokenGapCollector("turnwire_inter_token_latency_seconds", "Between two tokens of a turn.")
        registry.register(self.between_tokens)

    def answered(self, model: str, dialect: str, outcome: str, seconds: float) -> None:
        """Counts and times a request. `model` is "" where none was found."""
        self._requests(model, dialect, outcome).inc()
        if model:
            self._whole(model).observe(seconds)

    def used(self, model: str, usage: Usage) -> None:
        """Counts the tokens of a finished turn."""
        self._prompt(model).inc(usage.prompt)
        self._output(model).inc(usage.output)
        self._queries(model).inc(usage.prompt)
        self._hits(model).inc(usage.cached)


class TokenGaps:
    """A histogram of the times between the tokens of one turn.

    Events come in batches, and the number of their tokens is known only at the end of the turn, so gaps are kept by
    bucket until then. An observation takes 0.3 us on the token path; prometheus_client's own histogram takes 1.5.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BETWEEN_S) + 1)
        self.sums = [0.0] * (len(BETWEEN_S) + 1)

    def observe(self, seconds: float, count: int) -> None:
        """Adds `count` gaps of `seconds` each."""
        bucket = bisect_left(BETWEEN_S, seconds)
        self.counts[bucket] += count
        self.sums[bucket] += seconds * count

    def per_token(self, tokens: int) -> "TokenGaps":
        """Spreads the gaps evenly over `tokens` gaps of the same total time."""
        spread = TokenGaps()
        batches, seen, spent, seconds = sum(self.counts), 0, 0, 0.0
        for count, total in zip(self.counts, self.sums, strict=True):
            seen += count
            seconds += total
            share = round(seen * max(tokens, 0) / batches) - spent if count else 0
            if share:
                spread.observe(seconds / share, share)
                spent += share
                seconds = 0.0
        return spread


class TokenGapCollector:
    """The histogram of all turns, by model. It needs no lock, because it is written and scraped on the loop."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._models: dict[str, TokenGaps] = {}

    def add(self, model: str, gaps: TokenGaps) -> None:
        """Adds the gaps of a turn."""
        known = self._models.setdefault(model, TokenGaps())
        known.counts = [*map(sum, zip(known.counts, gaps.counts, strict=True))]
        known.sums = [*map(sum, zip(known.sums, gaps.sums, strict=True))]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yields the histogram."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        for model, gaps in self._models.items():
            below = 0
            buckets: list[tuple[str, float]] = []
            for edge, count in zip((*map(str, map(float, BETWEEN_S)), "+Inf"), gaps.counts, strict=True):
                below += count
                buckets.append((edge, below))
            family.add_metric([model], buckets, sum(gaps.sums))
        yield family


class TurnRecord:
    """The times, tokens and outcome of one request. `clock` and `started` are the event loop's."""

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
        self._gaps = TokenGaps()
        self._open = False

    def opened(self, model: str) -> None:
        """Records that the model is known and the turn begins."""
        self.model = model
        self._open = True
        self._metrics.running(model).inc()

    def batch(self, now: float | None = None, frames: int = 1) -> None:
        """Records the arrival of events, of one or more frames. `now`: the loop's time, if the caller has it."""
        if now is None:
            now = self._clock()
        if self.first_s is None:
            self.first_s = now - self._started
            self._metrics.first_token(self.model).observe(self.first_s)
        else:
            self._gaps.observe((now - self._last) / frames, frames)
        self._last = now

    def ends(self, last: TurnEvent) -> bool:
        """Records a choice's event. Returns whether it ends its turn."""
        if not isinstance(last, Finish | Failed):
            return False
        failure = failure_of(last)
        if failure is not None:
            self.outcome = str(failure.kind)
        if isinstance(last, Finish):
            self.outcome = self.outcome or str(last.reason)
            self.usage = last.usage if self.usage is None else self.usage + last.usage
            self._metrics.used(self.model, last.usage)
        return True

    def close(self, dialect: str) -> None:
        """Records the end of the request."""
        metrics = self._metrics
        if self._open:
            self._open = False
            metrics.running(self.model).dec()
        metrics.answered(self.model, dialect, self.outcome, self._clock() - self._started)
        if self.model:
            gaps = self._gaps if self.usage is None else self._gaps.per_token(self.usage.output - 1)
            metrics.between_tokens.add(self.model, gaps)

    @property
    def tokens(self) -> int:
        """What the request cost: tokens of the prompt without its cached part, and of the answer. For a turn that was
        given up, the whole prompt: its answer and cached part are unknown."""
        if self.usage is None:
            return self.prompt_tokens or 0
        return self.usage.prompt - self.usage.cached + self.usage.output

    def fields(self) -> dict[str, object]:
        """Returns the turn's fields of the log line."""
        fields: dict[str, object] = {"model": self.model, "stream": self.stream, "prompt_tokens": self.prompt_tokens}
        if self.first_s is not None:
            fields["ttft"] = round(self.first_s, 4)
        if self.usage is not None:
            fields["cached_tokens"] = self.usage.cached
            fields["output_tokens"] = self.usage.output
            fields["reasoning_tokens"] = self.usage.reasoning
        return fields
