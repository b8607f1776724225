"""Records OpenTelemetry spans and exports them by OTLP (docs/tracing.md).

The only module that uses OpenTelemetry, imported only where tracing is on. Elsewhere a process has no `Tracer`,
messages have no trace context, and nothing is recorded.

Stages record most spans when they are over, from times taken on the way. All times are Unix times in nanoseconds
(`time.time_ns`), which processes on one machine share. Attributes are numbers, names and kinds: never text of prompts,
answers, arguments or headers.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeAlias

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from schemas.control import Stage
from services import __version__
from services.runtime.config import ServiceConfig
from services.runtime.config.loader import mask_passwords
from services.runtime.observability.telemetry import FilteringBoundLogger

Carrier: TypeAlias = dict[str, str]
"""A W3C trace context: `traceparent`, and `tracestate` if there is one."""
Attributes: TypeAlias = Mapping[str, str | bool | int | float | Sequence[str] | None]
"""None: the attribute is left out."""

BATCH = 256
"""Spans that are exported at once, unless `OTEL_BSP_MAX_EXPORT_BATCH_SIZE` has another value. Half of the SDK's
default: encoding a batch holds up the event loop for some milliseconds."""
CLOSE_S = 2.0
"""For the last spans at the end of the process."""
LOG_EVERY_S = 60.0
"""Between two lines about spans that were not exported."""


class Scope:
    """A span as the parent of others, in this process or in another one."""

    def __init__(self, tracer: "Tracer", context: Context) -> None:
        self._tracer = tracer
        self._context = context

    def record(
        self,
        name: str,
        start: int,
        end: int,
        attributes: Attributes,
        *,
        error: str | None = None,
        events: Sequence[tuple[str, int, Attributes]] = (),
    ) -> "OpenSpan":
        """Records a child that is over. `error`: as in `OpenSpan.end`; `events`: each a name, a time and details."""
        span = self.open(name, start, attributes)
        for event, at, details in events:
            span.event(event, at, details)
        span.end(end, error=error)
        return span

    def open(self, name: str, start: int, attributes: Attributes, *, after: "OpenSpan | None" = None) -> "OpenSpan":
        """Begins a child. `after`: the span that it continues, to which it gets a link."""
        links = [Link(after.span.get_span_context())] if after is not None else None
        start_span = self._tracer.tracer.start_span
        span = start_span(name, self._context, attributes=_given(attributes), start_time=start, links=links)
        return OpenSpan(self._tracer, span)


class OpenSpan(Scope):
    """A span that is not over yet, in this process."""

    def __init__(self, tracer: "Tracer", span: Span) -> None:
        super().__init__(tracer, trace.set_span_in_context(span, Context()))
        self.span = span

    @property
    def sampled(self) -> bool:
        """Whether the span is recorded."""
        return self.span.is_recording()

    @property
    def trace_id(self) -> str:
        """In hexadecimal, as tracing systems show it."""
        return trace.format_trace_id(self.span.get_span_context().trace_id)

    @property
    def carrier(self) -> Carrier:
        """This span as the parent of what other processes record, for their messages."""
        carrier: Carrier = {}
        self._tracer.propagator.inject(carrier, self._context)
        return carrier

    def event(self, name: str, at: int, attributes: Attributes) -> None:
        """Adds an event."""
        self.span.add_event(name, _given(attributes), at)

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        self.span.set_attributes(_given(attributes))

    def end(self, at: int, *, error: str | None = None) -> None:
        """Ends the span. `error`: the kind of error with which it ended."""
        if error is not None:
            self.span.set_attribute("error.type", error)
            self.span.set_status(StatusCode.ERROR)
        self.span.end(at)


class Tracer:
    """Makes the spans of one process."""

    def __init__(self, provider: TracerProvider) -> None:
        self.tracer = provider.get_tracer("turnwire", __version__)
        self.propagator = TraceContextTextMapPropagator()
        self._provider = provider

    def scope(self, carrier: Carrier) -> Scope:
        """The sender's span, as the parent of this process's."""
        return Scope(self, self.propagator.extract(carrier, Context()))

    def serve(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> OpenSpan:
        """Begins the span of an HTTP request: a child of its `traceparent`, if it has one."""
        context = self.propagator.extract(_lower(headers), Context())
        return OpenSpan(self, self.tracer.start_span(name, context, SpanKind.SERVER, _given(attributes)))

    @contextmanager
    def within(self, headers: Mapping[str, str], span: OpenSpan | None) -> Iterator[None]:
        """Makes a span the parent of those that `open` begins in this task and in tasks that it starts. None: the
        client's, by `headers`."""
        context = (
            self.propagator.extract(_lower(headers), Context())
            if span is None
            else trace.set_span_in_context(span.span, Context())
        )
        token = current.attach(context)
        try:
            yield
        finally:
            current.detach(token)

    def open(self, name: str, attributes: Attributes) -> OpenSpan | None:
        """Begins a span of the task that is running (`within`). None: it is not sampled."""
        parent = trace.get_current_span().get_span_context()
        if parent.is_valid and not parent.is_remote and not parent.trace_flags.sampled:
            return None
        span = OpenSpan(self, self.tracer.start_span(name, attributes=_given(attributes)))
        return span if span.sampled else None

    async def close(self) -> None:
        """Exports what was recorded, and gives up after `CLOSE_S`."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(closed.set)

        # A daemon, so that a receiver that does not answer cannot hold up the end of the process.
        threading.Thread(target=shut_down, name="tracing-close", daemon=True).start()
        try:
            await asyncio.wait_for(closed.wait(), CLOSE_S)
        except TimeoutError:
            pass


def open_tracer(config: ServiceConfig, stage: Stage, process: str, log: FilteringBoundLogger) -> Tracer:
    """Sets up the SDK and its exporter, by the configuration and by the standard `OTEL_*` variables.

    Raises ImportError where the exporter of the protocol is not installed, ValueError for invalid settings.
    """
    if config.otlp_endpoint is not None and not config.otlp_endpoint.startswith(("http://", "https://")):
        raise ValueError("otlp_endpoint must be an http or https URL")
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [_OneLine(log)]
    logger.propagate = False
    own = {"service.instance.id": process, "service.version": __version__, "turnwire.stage": stage}
    resource = Resource.create(own)
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": f"turnwire-{stage}"}))
    # Only turns that the frontend sampled have a trace context in the messages to other stages.
    sampler: Sampler | None = None if stage == "frontend" else ALWAYS_ON
    if stage == "frontend" and config.trace_ratio is not None:
        sampler = ParentBased(TraceIdRatioBased(config.trace_ratio))
    provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
    batch = None if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else BATCH
    provider.add_span_processor(BatchSpanProcessor(_exporter(config.otlp_endpoint), max_export_batch_size=batch))
    return Tracer(provider)


def _exporter(endpoint: str | None) -> SpanExporter:
    env = os.environ
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter: SpanExporter = GrpcExporter(endpoint)
        return exporter
    if protocol not in (None, "", "http/protobuf"):
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL {protocol!r} is not supported: http/protobuf or grpc")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)


class _OneLine(logging.Handler):
    """Logs a problem of the SDK, and no other for `LOG_EVERY_S`: the SDK logs several lines for each batch."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._next = 0.0
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        if (at := time.monotonic()) < self._next:
            self._left_out += 1
            return
        self._log.warning("tracing.problem", problem=mask_passwords(record.getMessage()), left_out=self._left_out)
        self._next, self._left_out = at + LOG_EVERY_S, 0


def _given(attributes: Attributes) -> dict[str, str | bool | int | float | Sequence[str]]:
    return {name: value for name, value in attributes.items() if value is not None}


def _lower(headers: Mapping[str, str]) -> Carrier:
    """The headers of a trace context: the propagator reads them under their names in lower case only."""
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
