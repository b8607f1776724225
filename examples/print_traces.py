"""Receives traces by OTLP over HTTP and prints them as trees. Needs the extra `otel`.

python examples/print_traces.py [PORT]
turnwire up --tracing --otlp-endpoint http://127.0.0.1:4318
"""

import sys
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

QUIET_S = 6.0
"""Seconds without a new span after which a trace is printed; the SDK exports every five seconds."""


class Traces:
    """The traces that are not printed yet."""

    def __init__(self) -> None:
        self._spans: dict[bytes, list[tuple[str, Span]]] = defaultdict(list)
        self._newest: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def add(self, request: ExportTraceServiceRequest) -> None:
        """Adds the spans of an export."""
        with self._lock:
            for group in request.resource_spans:
                names = {pair.key: pair.value.string_value for pair in group.resource.attributes}
                for span in (span for scope in group.scope_spans for span in scope.spans):
                    self._spans[span.trace_id].append((names["service.name"], span))
                    self._newest[span.trace_id] = time.monotonic()

    def print_quiet(self) -> None:
        """Prints the traces without recent spans."""
        with self._lock:
            now = time.monotonic()
            for trace in [
                trace for trace, newest in self._newest.items() if now - newest > QUIET_S
            ]:
                del self._newest[trace]
                spans = sorted(
                    self._spans.pop(trace), key=lambda pair: pair[1].start_time_unix_nano
                )
                print(f"trace {trace.hex()}")
                known = {span.span_id for _, span in spans}
                for _, root in [pair for pair in spans if pair[1].parent_span_id not in known]:
                    _print(spans, root, 0, spans[0][1].start_time_unix_nano)


def _print(spans: list[tuple[str, Span]], span: Span, depth: int, zero: int) -> None:
    (service,) = [service for service, other in spans if other is span]
    begin = (span.start_time_unix_nano - zero) / 1e6
    length = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    failed = "  ERROR" if span.status.code == span.status.STATUS_CODE_ERROR else ""
    print(f"{begin:9.1f} ms {length:9.1f} ms  {'  ' * depth}{span.name}  [{service}]{failed}")
    for event in span.events:
        print(
            f"{(event.time_unix_nano - zero) / 1e6:9.1f} ms               {'  ' * depth}! "
            f"{event.name}"
        )
    for _, child in [pair for pair in spans if pair[1].parent_span_id == span.span_id]:
        _print(spans, child, depth + 1, zero)
    sys.stdout.flush()


def main() -> None:
    """Runs until it is interrupted."""
    traces = Traces()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Handles one request of an exporter."""
            data = self.rfile.read(int(self.headers["content-length"]))
            traces.add(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    port = int(sys.argv[1]) if len(sys.argv) > 1 else 4318
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listening on http://127.0.0.1:{port}", flush=True)
    while True:
        time.sleep(0.5)
        traces.print_quiet()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
