"""The metrics of several processes are joined: one family for each name, each sample with its process."""

import errno
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.cli.common import get
from services.cli.up.metrics import MetricsServer, ProcessMetrics


def process(count: int) -> str:
    """Serves the metrics of a process that counted; returns their address."""
    registry = CollectorRegistry()
    Counter("turnwire_turns", "Turns.", ["model"], registry=registry).labels("m").inc(count)
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


def test_metrics_are_at_their_path_only() -> None:
    server = MetricsServer("127.0.0.1", 0, ProcessMetrics({"worker-1": process(3)}))
    address = f"http://127.0.0.1:{server.server_port}"
    status, body = get(f"{address}/metrics", 5)
    assert (status, b"turnwire_turns_total" in body) == (200, True)
    assert get(f"{address}/", 5)[0] == 404
    server.shutdown()
    server.server_close()


def test_address_of_ipv6_is_served() -> None:
    try:
        server = MetricsServer("::1", 0, ProcessMetrics({"worker-1": process(3)}))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            pytest.skip("this machine has no IPv6")
        raise
    assert b"turnwire_turns_total" in get(f"http://[::1]:{server.server_port}/metrics", 5)[1]
    server.shutdown()
    server.server_close()


def test_process_that_answers_an_error_costs_no_metrics_of_others() -> None:
    failing = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # status 501 for every request
    threading.Thread(target=failing.serve_forever, daemon=True).start()
    urls = {"worker-1": process(3), "worker-2": f"http://127.0.0.1:{failing.server_port}/metrics"}
    lines = generate_latest(ProcessMetrics(urls)).decode().splitlines()
    failing.shutdown()
    failing.server_close()
    assert 'turnwire_turns_total{model="m",process="worker-1",stage="worker"} 3.0' in lines
    assert 'up{process="worker-2",stage="worker"} 0.0' in lines
