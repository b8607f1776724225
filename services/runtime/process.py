"""Runs one service process on the bus: its identity, heartbeats, drain and end.

A stage's `Service` subscribes through its `Process`; `serve` sets it, and `run` serves until the
end. SIGTERM or SIGINT starts the drain: heartbeats announce it, the service stops accepting work,
running turns may end, and the last heartbeat reports that the process has left. A second signal
ends the process within `END_S`.
"""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.control import Stage
from schemas.errors import EngineFailed, Invalid, TurnwireError, Unavailable
from services.runtime.config.loader import ConfigError
from services.runtime.config.names import START_VARIABLE
from services.runtime.config.service import ServiceConfig, StageConfig
from services.runtime.nats.bus import NO_MEMORY, Bus, Handler
from services.runtime.nats.client import STOP_S
from services.runtime.nats.connection import Subscription
from services.runtime.observability.metrics import (
    CountCollector,
    LabelledRegistry,
    LoadCollector,
    Reading,
    process_labels,
)
from services.runtime.observability.scope import NO_SCOPE, Scope
from services.runtime.observability.telemetry import (
    FilteringBoundLogger,
    adopt_library_logs,
    new_registry,
    open_log,
    watch_event_loop,
)
from services.runtime.presence.heartbeats import Heartbeats, Service
from services.runtime.presence.other_protocols import OtherProtocols

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Tracer

CUT_OFF_S = 0.1
"""Limit for an answer of a bus that hangs, at the end of the process."""
END_S = 0.5
"""Time from a second signal to the end of the process."""
END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Process:
    """One service process on the bus."""

    def __init__(
        self, stage: Stage, config: ServiceConfig, log: FilteringBoundLogger | None = None
    ) -> None:
        self.stage: Stage = stage
        self.config = config
        start = os.environ.get(START_VARIABLE) or secrets.token_hex(3)
        self.id = f"{config.id or socket.gethostname()}-{start}"
        self.log = (log or open_log(config)).bind(stage=stage, process=self.id)
        self.tracer = _tracer(config, stage, self.id, self.log)
        """None if tracing is off."""
        self.metrics = new_registry()
        self.bus = Bus(
            config.bus,
            name=f"turnwire/{stage}/{self.id}",
            inbox_prefix=f"_INBOX_{stage}",
            log=self.log,
            on_fatal=self.stop,
        )
        self.heartbeats = Heartbeats(
            stage, self.id, config.bus, self.bus, metrics=self.metrics, log=self.log
        )
        self.registry = self.heartbeats.registry
        self.on_tick = self.heartbeats.on_tick
        self.on_attached = self.heartbeats.on_attached
        self.on_reconnect = self.bus.on_reconnect
        self.on_reconnect.append(self.heartbeats.reconnected)
        self._subscriptions: list[Subscription] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._end = ProcessEnd(self.log)

    def __repr__(self) -> str:
        return f"{self.stage} {self.id}, {self.not_ready() or 'ready'}"

    async def connect(self) -> None:
        """Connects and subscribes to heartbeats. The process sends none before `announce`."""
        adopt_library_logs(self.log)
        await self.bus.connect()
        others = OtherProtocols(self.config.bus.dead_after_s, self.metrics, self.log)
        await self.heartbeats.start(others)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Subscribes as `Bus.subscribe`, until the end of the process."""
        subscription = await self.bus.subscribe(subject, handler)
        self._subscriptions.append(subscription)
        return subscription

    def publish(self, subject: str, message: msgspec.Struct) -> bool:
        """Encodes and publishes one message; returns False while the bus is down."""
        return self.bus.publish(subject, msgspec.json.encode(message))

    def probe(self, subject: str, message: msgspec.Struct, on_gone: Callable[[], None]) -> None:
        """Calls `on_gone` if no process subscribes to a subject, which NATS reports at once. A
        process that is suspended or cut off still subscribes."""

        def answered(answer: bytes | TurnwireError) -> None:
            if isinstance(answer, Unavailable):
                on_gone()

        data = msgspec.json.encode(message)
        try:
            self.bus.ask(subject, data, self.config.bus.beat_interval_s, answered)
        except Unavailable:
            pass  # the connection is down: the probe has no result

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a task of the process; logs its failure."""

        async def guarded() -> None:
            try:
                await work
            except Exception:  # no caller awaits the task
                self.log.exception("process.task_failed", task=name)

        task = asyncio.get_running_loop().create_task(guarded(), name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        # Otherwise a task that is cancelled at once logs a warning.
        task.add_done_callback(lambda _: work.close())
        return task

    def scope(self, trace: dict[str, str]) -> Scope:
        """The parent of this process's spans of a turn, from the trace context in a message;
        `NO_SCOPE`: the turn is not traced."""
        if not trace or self.tracer is None:
            return NO_SCOPE
        return self.tracer.scope(trace)

    @property
    def draining(self) -> bool:
        """Whether this process takes no new work."""
        return self.heartbeats.draining

    @property
    def failure(self) -> str | None:
        """Why the process cannot continue."""
        return self._end.failure

    @property
    def cut_off(self) -> bool:
        """Whether this process lacks messages of the others (`Heartbeats.cut_off`)."""
        return self.heartbeats.cut_off

    async def wait_until_attached(self) -> None:
        """Waits until this process is not cut off."""
        await self.heartbeats.wait_until_attached()

    def not_ready(self) -> str | None:
        """Why this process can do no work at the moment; None if it can."""
        if self.draining:
            return "draining"
        if not self.bus.connected:
            return "the connection to the bus is down"
        return "the bus does not answer" if self.cut_off else None

    def serve(self, service: Service) -> None:
        """Sets the service of this process: heartbeats report it, and `run` lets it drain."""
        self.heartbeats.service = service

    async def run(self) -> None:
        """Sends heartbeats until `stop`, then lets the service drain.

        Raises:
            EngineFailed: the process cannot continue (`failure` has the reason).
        """
        self._end.watch(asyncio.get_running_loop())
        self.spawn(watch_event_loop(self.metrics), "watch_event_loop")
        _register_metrics(self)
        async with AsyncExitStack() as stack:
            try:
                await self._serve_health(stack)
                await self.heartbeats.announce()
                self.log.info("process.ready")
                await self.heartbeats.send_until(self._end.event)
                if self.failure is None:
                    await self._drain()
            finally:
                self._end.unwatch(asyncio.get_running_loop())
                await self._leave()
        if self.failure is not None:
            raise EngineFailed(self.failure)

    def stop(self, failure: str | None = None) -> None:
        """Ends `run`: with a drain, or at once after a `failure`."""
        self._end.stop(failure)

    async def _serve_health(self, stack: AsyncExitStack) -> None:
        """Serves health, if that is configured, until the stack closes."""
        config = self.config
        if not isinstance(config, StageConfig) or config.metrics_port is None:
            return
        from services.runtime.health import HealthServer

        labels = process_labels(self.stage, config.model_name)
        health = HealthServer(LabelledRegistry(self.metrics, labels), self.not_ready)
        stack.push_async_callback(health.stop)
        try:
            port = await health.start(config.metrics_host, config.metrics_port)
        except OSError as error:
            other = "choose another address with --metrics-host and --metrics-port"
            raise ConfigError([f"{error.strerror or error}; {other}"]) from error
        self.log.info("process.health", url=f"http://{config.metrics_host}:{port}")

    async def _drain(self) -> None:
        """Lets the service drain, until the grace is over, a second signal comes or the process
        fails."""
        self.heartbeats.draining = True
        self.heartbeats.send()
        self.log.info("process.draining", grace_s=self.config.drain_s)
        self._end.event.clear()
        draining = asyncio.ensure_future(self.heartbeats.service.drain())
        stopped = asyncio.ensure_future(self.heartbeats.send_until(self._end.event))
        try:
            done, _ = await asyncio.wait(
                {draining, stopped},
                timeout=self.config.drain_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if draining in done:
                draining.result()
            else:
                reason = "grace is over"
                if stopped in done:
                    reason = "second signal" if self.failure is None else "failure"
                self.log.warning("process.drain_cut", reason=reason)
        finally:
            draining.cancel()
            stopped.cancel()
            await asyncio.gather(draining, stopped, return_exceptions=True)

    async def _leave(self) -> None:
        if not self.cut_off:  # else no message arrives here or there
            await asyncio.gather(*(subscription.stop() for subscription in self._subscriptions))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        cut_off = self.cut_off
        self.heartbeats.leave()
        await self.bus.close(CUT_OFF_S if cut_off else STOP_S)
        if self.tracer is not None:
            await self.tracer.close()
        self.log.info("process.left")


class ProcessEnd:
    """Why and when a process ends: a signal, a failure, or `Process.stop`."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.event = asyncio.Event()
        """Set when the process is to end, and again when its drain is to be cut short."""
        self.failure: str | None = None
        self._log = log
        self._signalled = False

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handles signals, and exceptions in callbacks of the loop."""
        for signum in END_SIGNALS:
            loop.add_signal_handler(signum, self._receive_signal)
        loop.set_exception_handler(self._handle_exception)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leaves signals to others."""
        for signum in END_SIGNALS:
            loop.remove_signal_handler(signum)

    def stop(self, failure: str | None = None) -> None:
        """Ends the process: with a drain, or at once after a `failure`."""
        if failure is not None and self.failure is None:
            self.failure = failure
            self._log.error("process.failed", reason=failure)
        self.event.set()

    def _receive_signal(self) -> None:
        """Starts the drain; a second signal cuts it short."""
        if self._signalled:
            # The kernel ends the process, even if a thread, an engine, the bus or a client delays
            # the end.
            signal.setitimer(signal.ITIMER_REAL, END_S)
        self._signalled = True
        self.stop()

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handles an exception in a callback of the loop. Out of memory, the callback's connection
        would hang; others can take over from a process that ends."""
        if isinstance(context.get("exception"), MemoryError):
            self.stop(failure=NO_MEMORY)
        loop.default_exception_handler(context)


def _register_metrics(process: Process) -> None:
    process.metrics.register(CountCollector(_bus_readings(process.bus)))
    if process.stage != "frontend":  # it has metrics of its turns by model and API
        load = process.heartbeats.service.load
        process.metrics.register(LoadCollector(process.stage, load))


def _tracer(
    config: ServiceConfig, stage: Stage, process: str, log: FilteringBoundLogger
) -> "Tracer | None":
    """Makes the tracer; None if tracing is off. Raises Invalid if it cannot be set up."""
    if not config.tracing:
        return None
    try:
        from services.runtime.observability.tracing import open_tracer

        return open_tracer(config, stage, process, log)
    except ImportError as error:
        raise Invalid(
            f"tracing needs the packages of the extra otel: {error}", param="tracing"
        ) from error
    except ValueError as error:
        raise Invalid(f"tracing: {error}", param="tracing") from error


def _bus_readings(bus: Bus) -> dict[str, Reading]:
    """The readings of this process's connection and its messages."""
    return {
        "turnwire_bus_connected": Reading(
            "Whether the connection to NATS is up.", bus, "connected"
        ),
        "turnwire_missing_buckets": Reading(
            "Buckets that this process uses and does not find.", bus.missing_buckets, "__len__"
        ),
        "turnwire_unwritable_buckets": Reading(
            "Buckets that take no writes: the disk of nats-server is full, or was.",
            bus.unwritable_buckets,
            "__len__",
        ),
        "turnwire_bus_published_total": Reading("Messages published.", bus, "published"),
        "turnwire_bus_received_total": Reading("Messages received.", bus, "received"),
    }
