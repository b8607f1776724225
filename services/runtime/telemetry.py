"""Logs, metrics and health of one process. Everything is an object that its maker passes on; nothing is global.

The one exception is what the standard library forces on us: `adopt_library_logs` hangs a handler on the root logger.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any, TextIO

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from services.runtime.config import ServiceConfig
from services.runtime.log_lines import LineWriter

LAG_SAMPLE_S = 0.1


def open_log(config: ServiceConfig, stream: TextIO | None = None, **bound: object) -> FilteringBoundLogger:
    """A logger at the configured level, with `bound` in every line: JSON lines, or text for people on a terminal."""
    stream = stream or sys.stderr
    console = config.log_format == "console" or (config.log_format == "auto" and stream.isatty())
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f" if console else "iso", utc=not console),
    ]
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
        if console
        else [structlog.processors.format_exc_info, _as_json]
    )
    log: FilteringBoundLogger = structlog.wrap_logger(
        LineWriter(stream),
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(config.log_level),
        cache_logger_on_first_use=True,
    )
    return log.bind(**bound)


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    line = {"time": event.pop("timestamp"), "level": event.pop("level"), "event": event.pop("event"), **event}
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except UnicodeEncodeError:  # half a surrogate pair; a line that cannot be written must not end what it tells of
        return json.dumps(line, ensure_ascii=False, default=str).encode(errors="replace").decode()


def adopt_library_logs(log: FilteringBoundLogger, level: int = logging.WARNING) -> None:
    """From now on, what libraries log through `logging` comes out of `log`, in its form."""
    root = logging.getLogger()
    root.handlers[:] = [_Adopted(log)]
    root.setLevel(level)


class _Adopted(logging.Handler):
    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)


def new_registry() -> CollectorRegistry:
    """A registry of this process's own metrics, CPU, memory, file handles and garbage collection included."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


async def watch_event_loop(registry: CollectorRegistry) -> None:
    """Measures until it is cancelled how late the event loop runs what is due, ten times a second.

    A histogram, not a gauge: one stall of 200 ms between two scrapes is what an operator looks for.
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


def render_metrics(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The registry's metrics in the form that an `Accept` header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class HealthServer:
    """/metrics, /live and /ready for a process without HTTP of its own.

    /live is 200 as long as the event loop turns. /ready is 200 when `not_ready` returns None; otherwise it is 503 and
    says what `not_ready` returned.
    """

    def __init__(self, registry: CollectorRegistry, not_ready: Callable[[], str | None]) -> None:
        self._registry = registry
        self._not_ready = not_ready
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/live", self._live)
        app.router.add_get("/ready", self._ready)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port, which is a free one where `port` is 0. Raises OSError if it is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Closes the port and every connection. May be called without `start`."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = render_metrics(self._registry, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _ready(self, _request: web.Request) -> web.Response:
        reason = self._not_ready()
        if reason is None:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "not ready", "reason": reason}, status=503)
