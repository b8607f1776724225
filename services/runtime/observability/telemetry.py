"""Makes the logger and the metrics registry of one process.

Only the handler that `adopt_library_logs` adds to the root logger is global.
"""

import asyncio
import json
import logging
import sys
from collections import defaultdict
from typing import Any, TextIO, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from services import __version__
from services.runtime.config.service import ServiceConfig
from services.runtime.observability.log_lines import LineWriter, RateLimit, printable, request_text
from services.runtime.observability.memory import without

with without("rich"):  # only for tracebacks with values, which no log may show: 40 ms and 5 MB
    import structlog
    import structlog.typing
    from structlog.typing import EventDict, WrappedLogger

FilteringBoundLogger: TypeAlias = structlog.typing.FilteringBoundLogger
LAG_SAMPLE_S = 0.25


def open_log(
    config: ServiceConfig, stream: TextIO | None = None, **bound: object
) -> FilteringBoundLogger:
    """Makes a logger at the configured level, with `bound` in every line: JSON lines, or text on a
    terminal."""
    stream = stream or sys.stderr
    console = config.log_format == "console" or (config.log_format == "auto" and stream.isatty())
    shared: list[Any] = [
        _TracebackLimit(),
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console),
    ]
    last: list[Any] = [structlog.processors.format_exc_info, _as_json]
    if console:
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)
        last = [_printable, renderer]
    log: FilteringBoundLogger = structlog.wrap_logger(
        LineWriter(stream),
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(config.log_level),
        cache_logger_on_first_use=True,
    )
    return log.bind(**bound)


class _TracebackLimit:
    """Leaves out a traceback within `REPEAT_S` of another one of the same event: a message may
    cause each, and anyone on the bus may send many. The next line has the number."""

    def __init__(self) -> None:
        self._limits: defaultdict[str, RateLimit] = defaultdict(RateLimit)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if event.get("exc_info"):
            left_out = self._limits[
                event.get("logger") or event["event"]
            ].admit()  # libraries' texts vary
            if left_out is None:
                raise structlog.DropEvent
            if left_out:
                event["left_out"] = left_out
        return event


def _printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    request = request_text(event)
    if request:
        return {"timestamp": event["timestamp"], "level": event["level"], "event": request}
    return {
        name: printable(value) if isinstance(value, str) else value for name, value in event.items()
    }


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    line = {
        "time": event.pop("timestamp"),
        "level": event.pop("level"),
        "event": event.pop("event"),
        **event,
    }
    text = json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"))
    if "Infinity" in text or "NaN" in text:  # not JSON, where they are numbers
        text = json.dumps(
            json.loads(text, parse_constant=str), ensure_ascii=False, separators=(",", ":")
        )
    return text.encode(errors="replace").decode()  # a lone surrogate must not raise


def adopt_library_logs(log: FilteringBoundLogger) -> None:
    """Routes the warnings and errors that libraries log through `logging` to `log`."""
    root = logging.getLogger()
    root.handlers[:] = [_LibraryLogs(log)]
    root.setLevel(logging.WARNING)


_HANGUPS = frozenset({"SSL connection is closed", "socket.send() raised exception."})
"""Messages of event loops about writes to a connection that the other side has ended."""


class _LibraryLogs(logging.Handler):
    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() in _HANGUPS:
            return
        self._log.log(
            record.levelno,
            record.getMessage(),
            logger=record.name,
            exc_info=record.exc_info or None,
        )


def new_registry() -> CollectorRegistry:
    """Makes a registry with the process's version, CPU, memory, file handles and garbage
    collection."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    Info("turnwire_build", "The release of this process.", registry=registry).info(
        {"version": __version__}
    )
    return registry


async def watch_event_loop(registry: CollectorRegistry) -> None:
    """Measures the event loop's lag four times a second, until it is cancelled.

    A histogram, not a gauge, so that one stall of half a second between two scrapes shows.
    """
    lag = Histogram(
        "turnwire_event_loop_lag_seconds",
        "How late the event loop ran what was due.",
        registry=registry,
        buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    )
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SAMPLE_S
        await asyncio.sleep(LAG_SAMPLE_S)
        lag.observe(max(0.0, loop.time() - due))


def render_metrics(registry: Collector, accept: str = "") -> tuple[bytes, str]:
    """The metrics in the form that an `Accept` header names, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
