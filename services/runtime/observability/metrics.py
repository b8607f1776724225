"""Reads metrics from objects that count anyway, so that the token path counts nothing twice."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from schemas.control import Load, Stage

STEP_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Buckets for a turn's time in one step of its path."""


class Reading(NamedTuple):
    """A metric that is an attribute of another object."""

    text: str
    """The help text."""
    owner: object
    attribute: str
    """The attribute's name, or that of a method without parameters."""

    def value(self) -> float:
        """Reads it."""
        value = getattr(self.owner, self.attribute)
        return float(value() if callable(value) else value)


class CountCollector(Collector):
    """Collects metrics that are plain attributes of other objects."""

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        """`readings`: name → reading. Names of counters end in `_total`; other metrics are
        gauges."""
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        for name, reading in self._readings.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(name, reading.text, value=reading.value())


class LoadCollector(Collector):
    """Collects the load that a stage's heartbeats report."""

    def __init__(self, stage: Stage, load: Callable[[], Load]) -> None:
        self._stage = stage
        self._load = load

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        load = self._load()
        name = "" if self._stage == "worker" else f"{self._stage}_"
        text = "Turns in work in this process."
        yield GaugeMetricFamily(f"turnwire_{name}requests_running", text, value=load.running)
        if self._stage != "worker":
            return
        text = "Turns that wait for a slot."
        yield GaugeMetricFamily("turnwire_requests_waiting", text, value=load.waiting)
        text = "Turns that can decode at once."
        yield GaugeMetricFamily("turnwire_slots", text, value=load.slots)
        if load.kv_used is not None:
            text = "Share of the KV cache in use."
            yield GaugeMetricFamily("turnwire_kv_cache_usage_ratio", text, value=load.kv_used)


class LabelledRegistry(Collector):
    """A process's registry with labels of the process on each of Turnwire's own metrics.

    The stages share names (`turnwire_requests_running`), and several models share a bus: without
    these labels a sum over all processes would mix them.
    """

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics. Their own labels take precedence."""
        for metric in self._registry.collect():
            if metric.name.startswith("turnwire_"):
                metric.samples = [
                    sample._replace(labels={**self._labels, **sample.labels})
                    for sample in metric.samples
                ]
            yield metric


def process_labels(stage: Stage, model: str | None = None) -> dict[str, str]:
    """The labels of a process. `model`: the one that it serves; None for a frontend, which serves
    all."""
    if model is None:
        return {"stage": stage}
    return {"stage": stage, "model": model}


def step_histogram(step: str, text: str, registry: CollectorRegistry) -> Histogram:
    """Makes the histogram of one step of a turn's path: `turnwire_request_<step>_time_seconds`."""
    return Histogram(
        f"turnwire_request_{step}_time_seconds", text, registry=registry, buckets=STEP_S
    )
