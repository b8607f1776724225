"""Runs one service process on the bus: its identity, heartbeats, drain and end.

A stage's `Service` subscribes through its `Process`; `serve` sets it, and `run` serves until the
end. SIGTERM or SIGINT starts the drain: heartbeats announce it, the service stops accepting work,
running turns may end, and the last heartbeat reports that the process has left. A second signal
ends the process within `END_S`.
"""

import asyncio
import math
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from schemas import subjects
from schemas.control import Heartbeat, Load, ModelCard, Stage
from schemas.errors import EngineFailed, Invalid, TurnwireError, Unavailable
from services import __version__
from services.runtime.bus import NO_MEMORY, STOP_S, Bus, Delivery, Subscription
from services.runtime.config import ServiceConfig, StageConfig
from services.runtime.config.loader import ConfigError
from services.runtime.heartbeat_auth import HeartbeatAuth
from services.runtime.liveness import Liveness
from services.runtime.observability.metrics import (
    CountCollector,
    LabelledRegistry,
    bus_readings,
    load_readings,
    process_labels,
    register,
)
from services.runtime.observability.telemetry import (
    FilteringBoundLogger,
    adopt_library_logs,
    new_registry,
    open_log,
    watch_event_loop,
)
from services.runtime.other_protocols import OtherProtocols
from services.runtime.registry import Registry

if TYPE_CHECKING:
    from services.runtime.observability.tracing import Scope, Tracer

CHANGE_DELAY_S = 0.02
"""Time from a change to its heartbeat, so that a hundred changes in a tick make one heartbeat."""
ANNOUNCE_S = 5 * CHANGE_DELAY_S
"""Time in which all others answer a new process's first heartbeat."""
CUT_OFF_S = 0.1
"""Limit for an answer of a bus that hangs, at the end of the process."""
END_S = 0.5
"""Time from a second signal to the end of the process."""


class Links(NamedTuple):
    """The fields of `Heartbeat` for the links to the receivers of a process's frames, by
    receiver."""

    sent: dict[str, int] = {}
    unacknowledged: dict[str, int] = {}
    replays: dict[str, int] = {}


class Service:
    """A stage of the pipeline in its process: what heartbeats report, and its end."""

    models: Sequence[ModelCard] = ()

    def load(self) -> Load:
        """Returns the number of turns in work."""
        return Load()

    def links(self) -> Links:
        """Returns the state of the links on which this stage sends frames."""
        return Links()

    async def drain(self) -> None:
        """Returns when the last turn has ended. May be cancelled."""


class Process:
    """One service process on the bus."""

    def __init__(
        self, stage: Stage, config: ServiceConfig, log: FilteringBoundLogger | None = None
    ) -> None:
        self.stage: Stage = stage
        self.config = config
        self.id = f"{config.id or socket.gethostname()}-{secrets.token_hex(3)}"
        self.log = (log or open_log(config)).bind(stage=stage, process=self.id)
        self.tracer = _tracer(config, stage, self.id, self.log)
        """None if tracing is off."""
        self.metrics = new_registry()
        self.registry = Registry(config.bus.dead_after_s, config.bus.recovery_s)
        self._heartbeat_auth = HeartbeatAuth(config.bus.heartbeat_key_file, self.metrics, self.log)
        self._other_protocols = OtherProtocols(config.bus.dead_after_s, self.metrics, self.log)
        self.bus = Bus(
            config.bus,
            name=f"turnwire/{stage}/{self.id}",
            inbox_prefix=f"_INBOX_{stage}",
            log=self.log,
            on_fatal=self.stop,
            on_reconnect=self._reconnected,
        )
        self.on_reconnect: list[Callable[[], None]] = []
        self.on_tick: list[Callable[[float], None]] = []
        """Called with the loop's time before every regular heartbeat."""
        self.on_attached: list[Callable[[], None]] = []
        """Called when this process was cut off and is no longer."""
        self.draining = False
        self.failure: str | None = None
        self._service = Service()
        self._subscriptions: list[Subscription] = []
        self._stop = asyncio.Event()
        self._stopping = False
        """Whether a signal has arrived."""
        self._announced = False
        """Whether heartbeats are sent, because all subscriptions exist."""
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._heartbeats = 0
        self._liveness = Liveness(config.bus)
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def connect(self) -> None:
        """Connects and subscribes to heartbeats. The process sends none before `announce`."""
        adopt_library_logs(self.log)
        await self.bus.connect()
        await self.bus.subscribe(subjects.own_heartbeats(), self._receive)
        # Apart, because a bus with the permissions of an earlier release refuses this one.
        await self.bus.subscribe(subjects.heartbeats(), self._note_other)

    async def subscribe(self, subject: str, handler: Callable[[Delivery], None]) -> Subscription:
        """Subscribes as `Bus.subscribe`, until the end of the process."""
        subscription = await self.bus.subscribe(subject, handler)
        self._subscriptions.append(subscription)
        return subscription

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
        task.add_done_callback(
            lambda _: work.close()
        )  # else a task that is cancelled at once logs a warning
        return task

    def publish(self, subject: str, message: msgspec.Struct) -> bool:
        """Encodes and publishes one message; returns False while the bus is down."""
        return self.bus.publish(subject, msgspec.json.encode(message))

    def scope(self, trace: dict[str, str]) -> "Scope | None":
        """Returns the parent of this process's spans of a turn, from the trace context in a
        message; None: the turn is not traced."""
        return self.tracer.scope(trace) if trace and self.tracer is not None else None

    @property
    def cut_off(self) -> bool:
        """Whether this process lacks messages of the others: its connection is down, or its own
        heartbeats do not come back, because the bus hangs or this process was suspended. What it
        receives now may be old."""
        if not self.bus.connected:
            return True
        return self._announced and self._liveness.silent(asyncio.get_running_loop().time())

    async def attached(self) -> None:
        """Waits while this process is cut off. Afterwards it has received everything that was sent
        meanwhile."""
        while self.cut_off:
            await self._liveness.came_back.wait()

    def probe(self, subject: str, message: msgspec.Struct, on_gone: Callable[[], None]) -> None:
        """Calls `on_gone` if no process subscribes to a subject, which NATS reports at once. A
        process that is suspended or cut off still subscribes."""

        def answered(answer: bytes | TurnwireError) -> None:
            if isinstance(answer, Unavailable):
                on_gone()

        try:
            self.bus.ask(
                subject, msgspec.json.encode(message), self.config.bus.beat_interval_s, answered
            )
        except Unavailable:
            pass  # the connection is down: the probe has no result

    async def run(self) -> None:
        """Sends heartbeats until `stop`, then lets the service drain.

        Raises:
            EngineFailed: the process cannot continue (`failure` has the reason).
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._signalled)
        loop.set_exception_handler(self._unhandled)
        self.spawn(watch_event_loop(self.metrics), "watch_event_loop")
        register(self.metrics, CountCollector(bus_readings(self.bus)))
        if self.stage != "frontend":  # it has metrics of its turns by model and API
            register(self.metrics, CountCollector(load_readings(self.stage, self._service.load)))
        health, config = None, self.config
        try:
            if isinstance(config, StageConfig) and config.metrics_port is not None:
                from services.runtime.health import HealthServer

                labels = process_labels(self.stage, config.model_name)
                health = HealthServer(LabelledRegistry(self.metrics, labels), self._not_ready)
                try:
                    port = await health.start(config.metrics_host, config.metrics_port)
                except OSError as error:
                    other = "choose another address with --metrics-host and --metrics-port"
                    raise ConfigError([f"{error.strerror or error}; {other}"]) from error
                self.log.info("process.health", url=f"http://{config.metrics_host}:{port}")
            await self.announce()
            self.log.info("process.ready")
            await self._heartbeat_until_stopped()
            if self.failure is None:
                await self._drain()
        finally:
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(signum)
            await self._leave()
            if health is not None:
                await health.stop()
        if self.failure is not None:
            raise EngineFailed(self.failure)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handles an exception in a callback of the loop. Out of memory, the callback's connection
        would hang; others can take over from a process that ends."""
        if isinstance(context.get("exception"), MemoryError):
            self.stop(failure=NO_MEMORY)
        loop.default_exception_handler(context)

    def _signalled(self) -> None:
        """Starts the drain; a second signal cuts it short."""
        if self._stopping:
            # The kernel ends the process, even if a thread, an engine, the bus or a client delays
            # the end.
            signal.setitimer(signal.ITIMER_REAL, END_S)
        self._stopping = True
        self.stop()

    def stop(self, failure: str | None = None) -> None:
        """Ends `run`: with a drain, or at once after a `failure`."""
        if failure is not None and self.failure is None:
            self.failure = failure
            self.log.error("process.failed", reason=failure)
        self._stop.set()

    def heartbeat_soon(self) -> None:
        """Sends a heartbeat before the next interval, because its content has changed."""
        if self._announced and self._heartbeat_timer is None and not self._stop.is_set():
            self._heartbeat_timer = asyncio.get_running_loop().call_later(
                CHANGE_DELAY_S, self.send_heartbeat
            )

    def send_heartbeat(self, *, leaving: bool = False) -> None:
        """Sends a heartbeat now."""
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        self._heartbeats += 1
        service = self._service
        links = service.links()
        heartbeat = Heartbeat(
            stage=self.stage,
            id=self.id,
            number=self._heartbeats,
            models=list(service.models),
            draining=self.draining,
            leaving=leaving,
            load=service.load(),
            window=self.config.bus.window_bytes,
            sent=links.sent,
            unacknowledged=links.unacknowledged,
            replays=links.replays,
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        if self.bus.publish(
            subjects.heartbeat(self.stage, self.id), self._heartbeat_auth.encode(heartbeat)
        ):
            self._liveness.sent(self._heartbeats, asyncio.get_running_loop().time())

    def serve(self, service: Service) -> None:
        """Sets the service of this process: heartbeats report it, and `run` lets it drain."""
        self._service = service

    async def announce(self) -> None:
        """Exchanges first heartbeats with the others. `run` calls this, unless it was called
        before."""
        if self._announced:
            return
        # The first heartbeat accepts no work. The others answer with theirs, so that this process
        # has all of them before it gets work.
        self._liveness.begin(asyncio.get_running_loop().time())
        self.draining = self._announced = True
        self.send_heartbeat()
        await asyncio.sleep(ANNOUNCE_S)
        self.draining = False
        self.send_heartbeat()

    async def _heartbeat_until_stopped(self) -> None:
        interval = self.config.bus.beat_interval_s
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(interval):
                    await self._stop.wait()
            except TimeoutError:
                pass
            now = loop.time()
            try:
                for callback in self.on_tick:
                    callback(now)
            except Exception:  # a listener must not stop the heartbeats
                self.log.exception("process.tick_failed")
            self.send_heartbeat()

    async def _drain(self) -> None:
        self.draining = True
        self.send_heartbeat()
        self.log.info("process.draining", grace_s=self.config.drain_s)
        self._stop.clear()
        draining = asyncio.ensure_future(self._service.drain())
        heartbeats = asyncio.ensure_future(self._heartbeat_until_stopped())
        try:
            done, _ = await asyncio.wait(
                {draining, heartbeats},
                timeout=self.config.drain_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if draining in done:
                draining.result()
            else:
                self.log.warning(
                    "process.drain_cut",
                    reason="second signal" if heartbeats in done else "grace is over",
                )
        finally:
            draining.cancel()
            heartbeats.cancel()
            await asyncio.gather(draining, heartbeats, return_exceptions=True)

    async def _leave(self) -> None:
        if not self.cut_off:  # else no message arrives here or there
            await asyncio.gather(*(subscription.stop() for subscription in self._subscriptions))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._announced:
            self.send_heartbeat(leaving=True)
        await self.bus.close(CUT_OFF_S if self.cut_off else STOP_S)
        if self.tracer is not None:
            await self.tracer.close()
        self.log.info("process.left")

    def _note_other(self, delivery: Delivery) -> None:
        if not subjects.is_own(delivery.subject):
            self._other_protocols.receive(delivery.subject)

    def _receive(self, delivery: Delivery) -> None:
        heartbeat = self._heartbeat_auth.decode(delivery.subject, delivery.data)
        if heartbeat is None:
            return
        if heartbeat.id == self.id and heartbeat.stage == self.stage:
            self._came_back(heartbeat.number, asyncio.get_running_loop().time())
            return
        if self.registry.receive(heartbeat, asyncio.get_running_loop().time()):
            self.log.debug("process.peer_joined", peer=heartbeat.id, peer_stage=heartbeat.stage)
            self.heartbeat_soon()  # so that the new process has this one's within milliseconds

    def _came_back(self, number: int, now: float) -> None:
        """Handles an own heartbeat that came back. Only up to when it was sent does the silence of
        another process show its death: the bus may hang, or this process may be suspended."""
        was_cut_off = self.cut_off
        returned = self._liveness.receive(number, now)
        if returned is None:
            return
        sent_at, gap, resumed = returned
        if resumed:
            # rare: own heartbeats come back after a gap What waited in the server arrives in any
            # order: the others' heartbeats may follow this one.
            self.registry.discount(math.inf, now)
            self.log.warning("process.was_cut_off", seconds=round(gap, 1))
            # when it comes back, everything that waited in the server has arrived
            self.send_heartbeat()
        else:
            self.registry.discount(max(gap - self.config.bus.beat_interval_s, 0.0), now)
        if was_cut_off and not self.cut_off:
            # rare: a process was cut off from the bus and is no longer
            for callback in self.on_attached:
                callback()
        for peer in self.registry.sweep(sent_at):
            # rare: another process counts as dead
            self.log.warning("process.peer_lost", peer=peer.id, peer_stage=peer.stage)

    def _not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        if not self.bus.connected:
            return "the connection to the bus is down"
        return "the bus does not answer" if self.cut_off else None

    def _reconnected(self) -> None:
        self.registry.discount(math.inf, asyncio.get_running_loop().time())
        self._liveness.forget_sent()
        if self._announced:
            self.send_heartbeat()
        for callback in self.on_reconnect:
            callback()


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
