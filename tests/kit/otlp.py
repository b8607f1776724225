"""A receiver of OTLP over HTTP, with what it got as spans."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.kit.waiting import LIMIT_S


@dataclass(frozen=True)
class ReceivedSpan:
    """One span."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start: int
    end: int
    state: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[str]
    failed: bool
    resource: dict[str, Any]


class Receiver:
    """Listens on a port of this machine from its construction on."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.data = b""
        """All that was received."""
        receiver, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                with lock:
                    receiver.data += data
                    receiver.spans += _spans(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def of(self, trace: str) -> "Trace":
        return Trace([span for span in self.spans if span.trace == trace])

    def wait(self, trace: str, complete: "Callable[[Trace], object]") -> "Trace":
        """Waits until a trace is complete; for a thread."""
        deadline = time.monotonic() + LIMIT_S
        while not complete(found := self.of(trace)):
            assert time.monotonic() < deadline, f"incomplete:\n{found}"
            time.sleep(0.02)
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()


class Trace:
    """The spans of one trace."""

    def __init__(self, spans: list[ReceivedSpan]) -> None:
        self.spans = sorted(spans, key=lambda span: span.start)
        self._ids = {span.id for span in spans}

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReceivedSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def children(self, parent: ReceivedSpan | None) -> list[ReceivedSpan]:
        """In the order of their starts; of None: those whose parent is not in the trace."""
        if parent is None:
            return [span for span in self.spans if span.parent not in self._ids]
        return [span for span in self.spans if span.parent == parent.id]

    def lines(self, parent: ReceivedSpan | None = None, depth: int = 0) -> list[str]:
        found = []
        for span in self.children(parent):
            found += ["  " * depth + span.name, *self.lines(span, depth + 1)]
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.trace_state,
                    _attributes(span.attributes),
                    [(event.name, _attributes(event.attributes)) for event in span.events],
                    [link.span_id.hex() for link in span.links],
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    resource,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
