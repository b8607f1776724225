"""Records OpenTelemetry spans and exports them by OTLP (docs/tracing.md).

The only module that uses OpenTelemetry, imported only where tracing is on. Elsewhere a process has
no `Tracer`, messages have no trace context, and nothing is recorded.

Stages record most spans when they are over, with times taken before. All times are Unix times in
nanoseconds (`time.time_ns`), which processes on one machine share. Attributes are numbers, names
and kinds: never text of prompts, answers, arguments or headers.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from random import getrandbits
from typing import TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from schemas.control import Stage
from services import __version__
from services.runtime.config.masking import mask_passwords
from services.runtime.config.service import ServiceConfig
from services.runtime.observability.log_lines import RateLimit
from services.runtime.observability.scope import Attributes, Scope, Value
from services.runtime.observability.telemetry import FilteringBoundLogger

Carrier: TypeAlias = dict[str, str]
"""A W3C trace context: `traceparent`, and `tracestate` if there is one."""

BATCH = 256
"""Spans in one export, unless `OTEL_BSP_MAX_EXPORT_BATCH_SIZE` has another value. Half of the SDK's
default, because encoding a batch blocks the event loop for some milliseconds."""
CLOSE_S = 2.0
"""Limit for the export of the last spans at the end of the process."""
LOG_EVERY_S = 60.0
"""Time between two lines about spans that were not exported."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)
_FAILED = Status(StatusCode.ERROR)


class TracedScope(Scope):
    """A parent of spans: a sampled span of this process or another one, or a trace without a span
    so far."""

    def __init__(self, tracer: "Tracer", context: SpanContext) -> None:
        """`context`: that of the span; for a new trace, one without a span id."""
        self._tracer = tracer
        self._context = context

    @property
    @override
    def carrier(self) -> Carrier:
        context = self._context
        carrier = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-01"}
        if context.trace_state:
            carrier["tracestate"] = context.trace_state.to_header()
        return carrier

    @override
    def record(
        self,
        name: str,
        start: int,
        end: int,
        attributes: Attributes,
        *,
        error: str | None = None,
        events: Sequence[tuple[str, int, Attributes]] = (),
    ) -> None:
        span = self.open(name, start, attributes)
        for event, at, details in events:
            span.event(event, at, details)
        span.end(end, error=error)

    @override
    def open(
        self,
        name: str,
        start: int,
        attributes: Attributes,
        *,
        after: Scope | None = None,
        server: bool = False,
    ) -> "OpenSpan":
        span = OpenSpan(self._tracer, self._context, name, start, attributes)
        if isinstance(after, TracedScope):
            span.links.append(Link(after._context))
        if server:
            span.kind = SpanKind.SERVER
        return span


FindParent: TypeAlias = Callable[[], TracedScope | None]
"""Returns the parent of a span that is opened; None: it is not sampled."""


class OpenSpan(TracedScope):
    """A span that is not over yet, in this process.

    The SDK's spans cost ten times as much: they are locked, limited and made current.
    """

    def __init__(
        self, tracer: "Tracer", parent: SpanContext, name: str, start: int, attributes: Attributes
    ) -> None:
        super().__init__(
            tracer,
            SpanContext(parent.trace_id, getrandbits(64), False, _SAMPLED, parent.trace_state),
        )
        self._parent = parent if parent.is_valid else None
        self._name = name
        self._start = start
        self._attributes = _without_none(attributes)
        self._events: list[Event] = []
        self.links: list[Link] = []
        self.kind = SpanKind.INTERNAL

    @property
    def trace_id(self) -> str:
        """The id of the trace in hexadecimal, as tracing systems show it."""
        return trace.format_trace_id(self._context.trace_id)

    @override
    def event(self, name: str, at: int, attributes: Attributes) -> None:
        self._events.append(Event(name, _without_none(attributes), at))

    @override
    def set(self, attributes: Attributes) -> None:
        self._attributes.update(_without_none(attributes))

    @override
    def end(self, at: int, *, error: str | None = None) -> None:
        if error is not None:
            self._attributes["error.type"] = error
        self._tracer.processor.on_end(
            ReadableSpan(
                self._name,
                self._context,
                self._parent,
                self._tracer.resource,
                self._attributes,
                self._events,
                self.links,
                self.kind,
                status=_UNSET if error is None else _FAILED,
                start_time=self._start,
                end_time=at,
                instrumentation_scope=self._tracer.library,
            )
        )


class Tracer:
    """Makes the spans of one process."""

    def __init__(self, sampler: Sampler, resource: Resource, processor: SpanProcessor) -> None:
        self.resource = resource
        self.processor = processor
        self.library = InstrumentationScope("turnwire", __version__)
        self._sampler = sampler
        self._propagator = TraceContextTextMapPropagator()
        self._find_parent: ContextVar[FindParent] = ContextVar("find_parent")

    def scope(self, carrier: Carrier) -> TracedScope:
        """The sender's span, from its `carrier`, as the parent of this process's spans."""
        _, trace_id, span_id, _ = carrier["traceparent"].split("-")
        state = None
        if "tracestate" in carrier:
            state = TraceState.from_header([carrier["tracestate"]])
        return TracedScope(
            self, SpanContext(int(trace_id, 16), int(span_id, 16), True, _SAMPLED, state)
        )

    def sample(self, headers: Mapping[str, str]) -> TracedScope | None:
        """The parent of a request's spans: the client's span from `traceparent`, or a new trace;
        None: the request is not sampled."""
        context = Context()
        if "traceparent" in headers:
            context = self._propagator.extract(_lower(headers), context)
        client = trace.get_current_span(context).get_span_context()
        if not client.is_valid:
            client = SpanContext(getrandbits(128), 0, False, _SAMPLED)
        sampled = self._sampler.should_sample(context, client.trace_id, "")
        if sampled.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        return TracedScope(self, client)

    @contextmanager
    def within(self, find_parent: FindParent) -> Iterator[None]:
        """Sets what `parent` returns in this task and in tasks that it starts."""
        token = self._find_parent.set(find_parent)
        try:
            yield
        finally:
            self._find_parent.reset(token)

    def parent(self) -> TracedScope | None:
        """The parent for the span of a turn that the running task opens (`within`); None: it is not
        sampled."""
        find_parent = self._find_parent.get(partial(self.sample, {}))
        return find_parent()

    async def close(self) -> None:
        """Exports the recorded spans, for at most `CLOSE_S`."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()

        def shut_down() -> None:
            self.processor.shutdown()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(closed.set)

        # A daemon, so that a receiver that does not answer cannot delay the end of the process.
        threading.Thread(target=shut_down, name="tracing-close", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await closed.wait()
        except TimeoutError:
            pass


def open_tracer(
    config: ServiceConfig, stage: Stage, process: str, log: FilteringBoundLogger
) -> Tracer:
    """Sets up the SDK and its exporter from the configuration and the standard `OTEL_*` variables.

    Raises ImportError if the protocol's exporter is not installed, ValueError for invalid settings.
    """
    endpoint = config.otlp_endpoint
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ValueError("otlp_endpoint must be an http or https URL")
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [_ProblemLog(log)]
    logger.propagate = False
    names = {
        "service.instance.id": process,
        "service.version": __version__,
        "turnwire.stage": stage,
    }
    resource = Resource.create(names)
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": f"turnwire-{stage}"}))
    # The provider reads the variables of samplers.
    provider = TracerProvider(_sampler(config, stage), resource, shutdown_on_exit=False)
    batch = None if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else BATCH
    processor = BatchSpanProcessor(_exporter(endpoint), max_export_batch_size=batch)
    return Tracer(provider.sampler, resource, processor)


def _sampler(config: ServiceConfig, stage: Stage) -> Sampler | None:
    """The sampler of a process; None: the one of the SDK's variables."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ALWAYS_OFF
    if stage != "frontend":
        # Only turns that the frontend sampled have a trace context in messages to other stages.
        return ALWAYS_ON
    if config.trace_ratio is not None:
        return ParentBased(TraceIdRatioBased(config.trace_ratio))
    return None


def _exporter(endpoint: str | None) -> SpanExporter:
    env = os.environ
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        exporter: SpanExporter = GrpcExporter(endpoint)
        return exporter
    if protocol not in (None, "", "http/protobuf"):
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL {protocol!r} is not supported: http/protobuf or grpc"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter as HttpExporter,
    )

    return HttpExporter(f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)


class _ProblemLog(logging.Handler):
    """Logs one problem of the SDK in `LOG_EVERY_S`: the SDK logs several lines for each batch."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._limit = RateLimit(LOG_EVERY_S)

    def emit(self, record: logging.LogRecord) -> None:
        left_out = self._limit.admit()
        if left_out is not None:
            self._log.warning(
                "tracing.problem", problem=mask_passwords(record.getMessage()), left_out=left_out
            )


def _without_none(attributes: Attributes) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


def _lower(headers: Mapping[str, str]) -> Carrier:
    """The headers of a trace context by lower-case names, as the propagator needs them."""
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
