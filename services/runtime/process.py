"""One service process on the bus: its identity, heartbeats, drain and end.

A service builds one `Process`, adds its subscriptions, and awaits `run`. SIGTERM or SIGINT starts the drain: heartbeats
announce it, the service stops accepting work, running turns may end, and the last heartbeat says that the process has
left. A second signal ends it at once.
"""

import asyncio
import math
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.control import Heartbeat, Load, ModelCard, Stage
from schemas.errors import EngineFailed
from services import __version__
from services.runtime.bus import Bus, Message, Subscription
from services.runtime.config import ServiceConfig, StageConfig
from services.runtime.metrics import BusCollector, LoadCollector, register
from services.runtime.registry import Registry
from services.runtime.telemetry import adopt_library_logs, new_registry, open_log, watch_event_loop

CHANGE_DELAY_S = 0.02
"""A heartbeat on change follows the change by this much, so that a hundred changes in a tick make one heartbeat."""
ANNOUNCE_S = 5 * CHANGE_DELAY_S
"""Within this time all others have answered a new process's first heartbeat."""

_decode_heartbeat = msgspec.json.Decoder(Heartbeat).decode
_encode = msgspec.json.Encoder().encode


class Process:
    """One service process on the bus."""

    def __init__(self, stage: Stage, config: ServiceConfig, log: FilteringBoundLogger | None = None) -> None:
        self.stage: Stage = stage
        self.config = config
        self.id = f"{config.id or socket.gethostname()}-{secrets.token_hex(3)}"
        self.log = (log or open_log(config)).bind(stage=stage, process=self.id)
        self.metrics = new_registry()
        self.registry = Registry(config.bus.dead_after_s)
        self.bus = Bus(
            config.bus,
            name=f"turnwire/{stage}/{self.id}",
            inbox_prefix=f"_INBOX_{stage}",
            log=self.log,
            on_fatal=self.stop,
            on_reconnect=self._reconnected,
        )
        self.models: list[ModelCard] = []
        self.load: Callable[[], Load] = Load
        self.sent: Callable[[], dict[str, int]] = dict
        self.unacknowledged: Callable[[], dict[str, int]] = dict
        self.replays: Callable[[], dict[str, int]] = dict
        self.on_reconnect: list[Callable[[], None]] = []
        self.on_tick: list[Callable[[float], None]] = []
        """Called with the loop's time before every regular heartbeat."""
        self.draining = False
        self.failure: str | None = None
        self._subscriptions: list[Subscription] = []
        self._stop = asyncio.Event()
        self._announced = False
        """Whether the others may know of this process: all its subscriptions exist."""
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Connects and subscribes to heartbeats; the process itself sends none before `run`."""
        adopt_library_logs(self.log)
        await self.bus.connect()
        await self.bus.subscribe(subjects.heartbeats(), self._receive)

    async def subscribe(self, subject: str, handler: Callable[[Message], None]) -> Subscription:
        """As `Bus.subscribe`; the subscription ends with the process."""
        subscription = await self.bus.subscribe(subject, handler)
        self._subscriptions.append(subscription)
        return subscription

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a task of the process; logs its failure."""

        async def guarded() -> None:
            try:
                await work
            except Exception:  # nobody awaits the task
                self.log.exception("process.task_failed", task=name)

        task = asyncio.get_running_loop().create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # else a task that is cancelled before its first step warns
        return task

    def publish(self, subject: str, message: msgspec.Struct) -> bool:
        """Encodes and publishes one message; returns False while the bus is down."""
        return self.bus.publish(subject, _encode(message))

    async def run(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Sends heartbeats until `stop`, then drains: `drain` returns when the last turn has ended.

        Raises:
            EngineFailed: the process cannot go on (`failure` says why).
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self.stop)
        self.spawn(watch_event_loop(self.metrics), "watch_event_loop")
        register(self.metrics, BusCollector(self.bus))
        if self.stage != "frontend":  # its own metrics have its turns, by model and API
            register(self.metrics, LoadCollector(self.stage, self.load))
        stop_health: Callable[[], Awaitable[None]] = _nothing
        try:
            stop_health = await self._serve_health()
            await self._announce()
            self.log.info("process.ready")
            await self._heartbeat_until_stopped()
            if self.failure is None:
                await self._drain(drain)
        finally:
            for signum in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(signum)
            await self._leave()
            await stop_health()
        if self.failure is not None:
            raise EngineFailed(self.failure)

    async def _serve_health(self) -> Callable[[], Awaitable[None]]:
        """Serves health on the configured port, if any. Returns what stops it."""
        config = self.config
        if not isinstance(config, StageConfig) or config.metrics_port is None:
            return _nothing
        from services.runtime.health import HealthServer

        server = HealthServer(self.metrics, self._not_ready)
        try:
            port = await server.start(config.metrics_host, config.metrics_port)
        except OSError:
            await server.stop()
            raise
        self.log.info("process.health", url=f"http://{config.metrics_host}:{port}")
        return server.stop

    def stop(self, failure: str | None = None) -> None:
        """Ends `run`: with a drain, or at once where a failure is given."""
        if failure is not None and self.failure is None:
            self.failure = failure
            self.log.error("process.failed", reason=failure)
        self._stop.set()

    def heartbeat_soon(self) -> None:
        """Sends a heartbeat soon instead of at the next interval: something in it changed."""
        if self._announced and self._heartbeat_timer is None and not self._stop.is_set():
            self._heartbeat_timer = asyncio.get_running_loop().call_later(CHANGE_DELAY_S, self.send_heartbeat)

    def send_heartbeat(self, *, leaving: bool = False) -> None:
        """Sends a heartbeat now."""
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        message = Heartbeat(
            stage=self.stage,
            id=self.id,
            models=self.models,
            draining=self.draining,
            leaving=leaving,
            load=self.load(),
            window=self.config.bus.window_bytes,
            sent=self.sent(),
            unacknowledged=self.unacknowledged(),
            replays=self.replays(),
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self.publish(subjects.heartbeat(self.stage, self.id), message)

    async def _announce(self) -> None:
        # The first heartbeat accepts no work: the others answer it with theirs, so that this process knows them all
        # before any work comes.
        self.draining = self._announced = True
        self.send_heartbeat()
        await asyncio.sleep(ANNOUNCE_S)
        self.draining = False
        self.send_heartbeat()

    async def _heartbeat_until_stopped(self) -> None:
        interval = self.config.bus.beat_interval_s
        loop = asyncio.get_running_loop()
        last = loop.time()
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(interval):
                    await self._stop.wait()
            except TimeoutError:
                pass
            now = loop.time()
            # While this loop did not run, or the bus was away, nothing could be received: the others are not to blame.
            self.registry.discount(max(0.0, now - last - interval) if self.bus.connected else now - last, now)
            last = now
            try:
                for peer in self.registry.sweep(now):
                    self.log.warning("process.peer_lost", peer=peer.id, peer_stage=peer.stage)
                for callback in self.on_tick:
                    callback(now)
            except Exception:  # heartbeats continue whatever a listener does
                self.log.exception("process.tick_failed")
            self.send_heartbeat()

    async def _drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        self.draining = True
        self.send_heartbeat()
        self.log.info("process.draining", grace_s=self.config.drain_s)
        self._stop.clear()
        draining = asyncio.ensure_future(drain())
        heartbeats = asyncio.ensure_future(self._heartbeat_until_stopped())
        try:
            done, _ = await asyncio.wait(
                {draining, heartbeats}, timeout=self.config.drain_s, return_when=asyncio.FIRST_COMPLETED
            )
            if draining in done:
                draining.result()
            else:
                self.log.warning("process.drain_cut", reason="second signal" if heartbeats in done else "grace is over")
        finally:
            draining.cancel()
            heartbeats.cancel()
            await asyncio.gather(draining, heartbeats, return_exceptions=True)

    async def _leave(self) -> None:
        for subscription in self._subscriptions:
            await subscription.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.send_heartbeat(leaving=True)
        await self.bus.close()
        self.log.info("process.left")

    def _receive(self, message: Message) -> None:
        heartbeat = _decode_heartbeat(message.data)
        if heartbeat.id == self.id and heartbeat.stage == self.stage:
            return
        if self.registry.receive(heartbeat, asyncio.get_running_loop().time()):
            self.log.debug("process.peer_joined", peer=heartbeat.id, peer_stage=heartbeat.stage)
            self.heartbeat_soon()  # so that the new process knows this one within milliseconds

    def _not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        return None if self.bus.connected else "the connection to the bus is down"

    def _reconnected(self) -> None:
        self.registry.discount(math.inf, asyncio.get_running_loop().time())
        if self._announced:
            self.send_heartbeat()
        for callback in self.on_reconnect:
            callback()


async def _nothing() -> None:
    pass
