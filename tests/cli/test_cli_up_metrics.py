"""The metrics of several processes are joined: one family for each name, each sample with its
process."""

import socket

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.cli.up.metrics import ProcessMetrics


def process(count: int) -> str:
    """Serves the metrics of a process that counted; returns their address."""
    registry = CollectorRegistry()
    turns = Counter("turnwire_turns", "Turns.", ["model"], registry=registry)
    turns.labels("m").inc(count)
    turns.labels("another").inc()
    Histogram("turnwire_wait_seconds", "Waits.", registry=registry, buckets=(0.1, 1.0)).observe(0.5)
    server, _ = start_http_server(0, "127.0.0.1", registry)
    return f"http://127.0.0.1:{server.server_port}/metrics"


def test_metrics_of_processes_are_joined() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{unused.getsockname()[1]}/metrics"
        metrics = ProcessMetrics({"worker-1": process(3), "worker-2": process(4), "parser-1": gone})
        text = generate_latest(metrics).decode()
    families = [metric.name for metric in text_string_to_metric_families(text)]
    assert len(families) == len(set(families))
    for line in (
        'turnwire_turns_total{model="m",process="worker-1",stage="worker"} 3.0',
        'turnwire_turns_total{model="m",process="worker-2",stage="worker"} 4.0',
        'turnwire_wait_seconds_bucket{le="1.0",process="worker-2",stage="worker"} 1.0',
        'up{process="worker-1",stage="worker"} 1.0',
        'up{process="parser-1",stage="parser"} 0.0',
    ):
        assert line in text.splitlines()
