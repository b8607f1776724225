"""Defines the frontend's metrics of turns.

They have vLLM's names, with `turnwire_` in front, and its bucket edges, so that dashboards can be
reused.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily

from schemas.events import Usage
from services.runtime.observability.metrics import STEP_S

FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
BETWEEN_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
)
WHOLE_S = (
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    120,
    240,
    480,
    960,
    1920,
    7680,
)


class FrontendMetrics:
    """The metrics of one process, in its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = Counter(
            "turnwire_requests",
            "Requests, by how they ended.",
            ["model", "dialect", "outcome"],
            registry=registry,
        )
        self.running = Gauge(
            "turnwire_requests_running", "Turns that are open.", ["model"], registry=registry
        )
        self.first_token = self._histogram(
            "turnwire_time_to_first_token_seconds",
            "From a request to its first event.",
            FIRST_TOKEN_S,
        )
        self.receive = self._histogram(
            "turnwire_request_receive_time_seconds",
            "From a request's head to the parsed request: its body, authentication, parsing.",
            STEP_S,
        )
        self.whole = self._histogram(
            "turnwire_e2e_request_latency_seconds",
            "From a request to the end of its answer.",
            WHOLE_S,
        )
        self.prompt = self._counter("turnwire_prompt_tokens", "Tokens of prompts.")
        self.output = self._counter("turnwire_generation_tokens", "Tokens decoded.")
        self.queries = self._counter(
            "turnwire_prefix_cache_queries_tokens",
            "Prompt tokens that were looked up in the prefix cache.",
        )
        self.hits = self._counter(
            "turnwire_prefix_cache_hits_tokens",
            "Prompt tokens that were found in the prefix cache.",
        )
        self.between_tokens = TokenGapCollector(
            "turnwire_inter_token_latency_seconds", "Between two tokens of a turn."
        )
        registry.register(self.between_tokens)
        self._models: dict[str, ModelMetrics] = {}

    def of(self, model: str) -> "ModelMetrics":
        """Returns the metrics of a model."""
        metrics = self._models.get(model)
        if metrics is None:
            metrics = self._models[model] = ModelMetrics(self, model)
        return metrics

    def count_refusal(self, dialect: str, outcome: str) -> None:
        """Counts a request that is refused before its model is known."""
        self.requests.labels("", dialect, outcome).inc()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model"], registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, ["model"], registry=self._registry, buckets=buckets)


class ModelMetrics:
    """The metrics of one model. Looking them up by their labels takes 1.2 us each, ten times a
    request."""

    def __init__(self, metrics: FrontendMetrics, model: str) -> None:
        self.running = metrics.running.labels(model)
        self.first_token = metrics.first_token.labels(model)
        self.receive = metrics.receive.labels(model)
        self.token_gaps = metrics.between_tokens.of(model)
        self._model = model
        self._requests = metrics.requests
        self._requests_by_end: dict[tuple[str, str], Counter] = {}
        """The counters of requests, by dialect and outcome."""
        self._whole = metrics.whole.labels(model)
        self._prompt = metrics.prompt.labels(model)
        self._output = metrics.output.labels(model)
        self._queries = metrics.queries.labels(model)
        self._hits = metrics.hits.labels(model)

    def count_answer(self, dialect: str, outcome: str, seconds: float) -> None:
        """Counts and times a request."""
        key = dialect, outcome
        requests = self._requests_by_end.get(key)
        if requests is None:
            requests = self._requests_by_end[key] = self._requests.labels(self._model, *key)
        requests.inc()
        self._whole.observe(seconds)

    def count_tokens(self, usage: Usage) -> None:
        """Counts the tokens of an answer, also of one that was given up."""
        self._prompt.inc(usage.prompt)
        self._output.inc(usage.output)

    def count_cache(self, usage: Usage) -> None:
        """Counts what the engine found in its cache for a finished turn."""
        self._queries.inc(usage.prompt)
        self._hits.inc(usage.cached)


class TokenGaps:
    """A histogram of the times between tokens. An observation takes 0.2 us; prometheus_client's own
    takes 1.5."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BETWEEN_S) + 1)
        self.seconds = 0.0


class TokenTimes:
    """Measures the times between the tokens of one choice.

    Tokens that arrive together share the time since the previous ones equally: each is one
    observation. The first ones are not observed, because their time is the time to the first token.
    """

    __slots__ = ("_gaps", "_last", "tokens")

    def __init__(self, gaps: TokenGaps) -> None:
        self._gaps = gaps
        self.tokens = 0
        """The number of tokens that have arrived."""
        self._last = 0.0

    def record(self, tokens: int, now: float) -> None:
        """Records an arrival. `tokens`: output tokens so far; not more than before where a part was
        sent again."""
        before = self.tokens
        if before:
            new = tokens - before
            if new <= 0:
                return
            seconds = now - self._last
            gaps = self._gaps
            gaps.counts[bisect_left(BETWEEN_S, seconds / new)] += new
            gaps.seconds += seconds
            self.tokens = tokens
        else:
            self.tokens = tokens or 1  # an event without text was made by a token, too
        self._last = now


class TokenGapCollector:
    """The histogram of all turns, by model. It needs no lock: the event loop both writes and
    scrapes it."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._models: dict[str, TokenGaps] = {}

    def of(self, model: str) -> TokenGaps:
        """Returns the histogram of a model."""
        return self._models.setdefault(model, TokenGaps())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yields the histogram."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        edges = [*(str(float(edge)) for edge in BETWEEN_S), "+Inf"]
        for model, gaps in self._models.items():
            buckets = [*zip(edges, accumulate(gaps.counts), strict=True)]
            family.add_metric([model], buckets, gaps.seconds)
        yield family
