"""Reads metrics from objects that count anyway, so that nothing is counted twice on the token path."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from schemas.control import Load
from services.runtime.bus import Bus

Reading = tuple[str, Callable[[], float | None]]
"""Help text, and what reads the value; None: the metric is left out."""


class CountCollector(Collector):
    """Metrics that are plain attributes elsewhere."""

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        """`readings`: by name. Names of counters end in `_total`; other metrics are gauges."""
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        for name, (text, read) in self._readings.items():
            if (value := read()) is not None:
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield family(name, text, value=value)


def bus_readings(bus: Bus) -> dict[str, Reading]:
    """The connection of this process and its messages."""
    return {
        "turnwire_bus_connected": ("Whether the connection to NATS is up.", lambda: bus.connected),
        "turnwire_bus_published_total": ("Messages published.", lambda: bus.published),
        "turnwire_bus_received_total": ("Messages received.", lambda: bus.received),
    }


def load_readings(stage: str, load: Callable[[], Load]) -> dict[str, Reading]:
    """The load that heartbeats report."""
    text = "Turns in work in this process."
    if stage != "worker":
        return {f"turnwire_{stage}_requests_running": (text, lambda: load().running)}
    return {
        "turnwire_requests_running": (text, lambda: load().running),
        "turnwire_requests_waiting": ("Turns that wait for a slot.", lambda: load().waiting),
        "turnwire_slots": ("Turns that can decode at once.", lambda: load().slots),
        "turnwire_kv_cache_usage_ratio": ("Share of the KV cache in use.", lambda: load().kv_used),
    }


def register(registry: CollectorRegistry, *collectors: Collector) -> None:
    """Adds collectors to a process's registry."""
    for collector in collectors:
        registry.register(collector)
