"""Serves the metrics of all processes of `turnwire up` at one address.

Each process has its own metrics; this server reads them when it is read. Every sample gets the labels `stage` and
`process`, because several processes of a stage have series of the same name and labels.
"""

import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from services.cli.common import get

TIMEOUT_S = 2.0


class ProcessMetrics(Collector):
    """Collects the metrics of processes. `urls`: the address of each process's `/metrics` by its name, as in
    `worker-1`."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, those of one name together. A process that does not answer has only `up`, which is 0."""
        found: dict[str, Metric] = {"up": Metric("up", "Whether the process answers.", "gauge")}
        for process, url in self._urls.items():
            labels = {"stage": process.rpartition("-")[0], "process": process}
            try:
                status, body = get(url, TIMEOUT_S)
                text = body.decode() if status == 200 else ""
            except OSError:
                text = ""
            found["up"].add_sample("up", labels, float(bool(text)))
            for metric in text_string_to_metric_families(text):
                joined = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                joined.samples += [sample._replace(labels={**labels, **sample.labels}) for sample in metric.samples]
        yield from found.values()


class MetricsServer(ThreadingHTTPServer):
    """Serves `/metrics` in a thread until the process ends."""

    daemon_threads = True

    def __init__(self, host: str, port: int, metrics: Collector) -> None:
        """Raises OSError if the port is taken."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.metrics = metrics
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "the metrics are at /metrics")
            return
        body = generate_latest(cast(MetricsServer, self.server).metrics)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: a scraper comes every few seconds."""
