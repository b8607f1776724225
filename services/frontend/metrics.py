"""What the frontend counts and times. Names are those of the field with `turnwire_` before them (docs/pipeline.md).

Bucket edges are vLLM's, so that dashboards carry over.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily

from schemas.events import Usage

FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
WHOLE_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class FrontendMetrics:
    """Metrics of one process, in its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: Sequence[str] = ("model",)) -> Callable[..., Counter]:
            return cache(Counter(name, text, labels, registry=registry).labels)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Callable[..., Histogram]:
            return cache(Histogram(name, text, ["model"], registry=registry, buckets=buckets).labels)

        # `labels` looks its values up under a lock, 1.2 us a time, nine times a request; there are but a few.
        self._requests = counter("turnwire_requests", "Requests, by how they ended.", ("model", "dialect", "outcome"))
        self._running = cache(
            Gauge("turnwire_requests_running", "Turns that are open.", ["model"], registry=registry).labels
        )
        self._first = histogram(
            "turnwire_time_to_first_token_seconds", "From a request to its first event.", FIRST_TOKEN_S
        )
        self._whole = histogram(
            "turnwire_e2e_request_latency_seconds", "From a request to the end of its answer.", WHOLE_S
        )
        self._prompt = counter("turnwire_prompt_tokens", "Tokens of prompts.")
        self._output = counter("turnwire_generation_tokens", "Tokens decoded.")
        self._asked = counter(
            "turnwire_prefix_cache_queries_tokens", "Prompt tokens that were looked up in the prefix cache."
        )
        self._cached = counter(
            "turnwire_prefix_cache_hits_tokens", "Prompt tokens that were found in the prefix cache."
        )
        self._between = _Gaps(
            "turnwire_inter_token_latency_seconds", "Between two batches of events of a turn.", BETWEEN_S
        )
        registry.register(self._between)

    def opened(self, model: str) -> None:
        """A turn is open."""
        self._running(model).inc()

    def closed(self, model: str) -> None:
        """A turn is not open any more."""
        self._running(model).dec()

    def first_token(self, model: str, seconds: float) -> None:
        """The first event of a turn is here."""
        self._first(model).observe(seconds)

    def between(self, model: str) -> Callable[[float], None]:
        """What to call with the time between two batches of events; cheap, for it is called for every batch."""
        return self._between.observer(model)

    def answered(self, model: str, dialect: str, outcome: str, seconds: float) -> None:
        """A request ended. `model` is "" where none was found."""
        self._requests(model, dialect, outcome).inc()
        if model:
            self._whole(model).observe(seconds)

    def used(self, model: str, usage: Usage) -> None:
        """The tokens of a finished turn."""
        self._prompt(model).inc(usage.prompt)
        self._output(model).inc(usage.output)
        self._asked(model).inc(usage.prompt)
        self._cached(model).inc(usage.cached)


class _Gaps:
    """A histogram by model for the token path: 0.2 µs an observation, where prometheus_client's own takes 1.5.

    It needs no lock because it is written and scraped on the loop.
    """

    def __init__(self, name: str, text: str, edges: tuple[float, ...]) -> None:
        self._name = name
        self._text = text
        self._edges = edges
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, list[float]] = {}

    def observer(self, model: str) -> Callable[[float], None]:
        counts = self._counts.setdefault(model, [0] * (len(self._edges) + 1))
        total = self._sums.setdefault(model, [0.0])
        edges = self._edges

        def observe(seconds: float) -> None:
            counts[bisect_left(edges, seconds)] += 1
            total[0] += seconds

        return observe

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        for model, counts in self._counts.items():
            below = 0
            buckets: list[tuple[str, float]] = []
            for edge, count in zip((*map(str, map(float, self._edges)), "+Inf"), counts, strict=True):
                below += count
                buckets.append((edge, below))
            family.add_metric([model], buckets, self._sums[model][0])
        yield family
