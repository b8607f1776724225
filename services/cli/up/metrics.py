"""Serves the metrics of all processes of `turnwire up` at one address.

Each process has its own metrics; this server reads them when it is read. Every sample gets the
labels `stage` and `process`, because several processes of a stage have series of the same name and
labels.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from services.cli.common import get

TIMEOUT_S = 2.0


def serve_metrics(host: str, port: int, urls: Mapping[str, str]) -> WSGIServer:
    """Serves `ProcessMetrics` in a thread until this process ends. Raises OSError if the port is
    taken."""
    registry = CollectorRegistry()
    registry.register(ProcessMetrics(urls))
    server, _ = start_http_server(port, host, registry)
    return server


class ProcessMetrics(Collector):
    """Collects the metrics of processes. `urls`: the address of each process's `/metrics` by its
    name, as in `worker-1`."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, those of one name together. A process that does not answer has only
        `up`, which is 0."""
        metrics: dict[str, Metric] = {"up": Metric("up", "Whether the process answers.", "gauge")}
        with ThreadPoolExecutor(len(self._urls)) as threads:  # all that hang take the time of one
            texts = threads.map(_read, self._urls.values())
            for process, text in zip(self._urls, texts, strict=True):
                labels = {"stage": process.partition("-")[0], "process": process}
                metrics["up"].add_sample("up", labels, float(bool(text)))
                for metric in text_string_to_metric_families(text):
                    # OpenMetrics has a counter and its creation in one family.
                    counter = metric.name.removesuffix("_created")
                    name = counter if counter in metrics else metric.name
                    empty = Metric(name, metric.documentation, metric.type)
                    metrics.setdefault(name, empty).samples += [
                        sample._replace(labels={**labels, **sample.labels})
                        for sample in metric.samples
                    ]
        for metric in metrics.values():  # OpenMetrics has all samples of a series together
            metric.samples.sort(key=_series)
        yield from metrics.values()


def _series(sample: Sample) -> list[tuple[str, str]]:
    """The labels that name a sample's series."""
    return sorted(label for label in sample.labels.items() if label[0] != "le")


def _read(url: str) -> str:
    try:
        status, body = get(url, TIMEOUT_S)
    except OSError:
        return ""
    return body.decode() if status == 200 else ""
