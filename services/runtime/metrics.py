"""Collectors that read metrics from objects which count anyway, so that nothing is counted twice on the token path."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from schemas.control import Load
from services.runtime.bus import Bus


class BusCollector(Collector):
    """`turnwire_bus_*`: the connection of this process and its messages."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def collect(self) -> Iterator[Metric]:
        """Yields the counters."""
        bus = self._bus
        yield GaugeMetricFamily("turnwire_bus_connected", "Whether the connection to NATS is up.", bus.connected)
        yield CounterMetricFamily("turnwire_bus_published_total", "Messages published.", value=bus.published)
        yield CounterMetricFamily("turnwire_bus_received_total", "Messages received.", value=bus.received)


class LoadCollector(Collector):
    """`turnwire_requests_running`, `_waiting` and the rest of the load that heartbeats report."""

    def __init__(self, stage: str, load: Callable[[], Load]) -> None:
        self._stage = stage
        self._load = load

    def collect(self) -> Iterator[Metric]:
        """Yields the load."""
        load = self._load()
        prefix = "turnwire" if self._stage == "worker" else f"turnwire_{self._stage}"
        yield GaugeMetricFamily(f"{prefix}_requests_running", "Turns in work in this process.", load.running)
        if self._stage == "worker":
            yield GaugeMetricFamily("turnwire_requests_waiting", "Turns that wait for a slot.", load.waiting)
            yield GaugeMetricFamily("turnwire_slots", "Turns that can decode at once.", load.slots)
            if load.kv_used is not None:
                yield GaugeMetricFamily("turnwire_kv_cache_usage_ratio", "Share of the KV cache in use.", load.kv_used)


class CountCollector(Collector):
    """Counters that are plain attributes elsewhere."""

    def __init__(self, counters: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """`counters`: name (with `_total`) → (help, reading)."""
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yields the counters."""
        for name, (text, read) in self._counters.items():
            yield CounterMetricFamily(name, text, value=read())


def register(registry: CollectorRegistry, *collectors: Collector) -> None:
    """Adds collectors to a process's registry."""
    for collector in collectors:
        registry.register(collector)
