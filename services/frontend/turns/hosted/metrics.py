"""Counts and times the calls of hosted tools."""

from prometheus_client import CollectorRegistry, Counter, Histogram

SECONDS = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60)


class HostedMetrics:
    """The metrics of one process, in its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "turnwire_hosted_calls", "Calls of hosted tools, by how they ended.", ["tool", "outcome"], registry=registry
        )
        self._seconds = Histogram(
            "turnwire_hosted_call_seconds",
            "From a call of a provider to its answer.",
            ["tool"],
            registry=registry,
            buckets=SECONDS,
        )

    def ended(self, tool: str, outcome: str, seconds: float | None) -> None:
        """Counts a call. `outcome`: `ok`, `cancelled` or an error code; `seconds`: None if no provider was called."""
        self._calls.labels(tool, outcome).inc()
        if seconds is not None:
            self._seconds.labels(tool).observe(seconds)
