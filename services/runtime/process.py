"""What every service process is: an identity on the bus that beats, hears the others, drains and leaves.

A service builds one `Process`, adds its subscriptions, and awaits `run`. SIGTERM or SIGINT starts the drain: the
process says so in its beats, its service stops taking work, turns that run may end, and the last beat says that it is
gone. A second signal ends it at once.
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
from schemas.control import Beat, Load, ModelCard, Stage
from schemas.errors import EngineFailed
from services.runtime.bus import Bus, Message, Subscription
from services.runtime.config import ServiceConfig, StageConfig
from services.runtime.metrics import BusCollector, LoadCollector, register
from services.runtime.registry import Registry
from services.runtime.telemetry import adopt_library_logs, new_registry, open_log, watch_event_loop

VERSION = "0.1.0"
POKE_DELAY_S = 0.02
"""Beats on change are at least so far apart: a hundred changes in a tick make one beat."""
ANNOUNCE_S = 5 * POKE_DELAY_S
"""Within this time everybody has answered a newcomer's first beat."""

_decode_beat = msgspec.json.Decoder(Beat).decode
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
            on_fatal=self._fatal,
            on_reconnect=self._reconnected,
        )
        self.models: list[ModelCard] = []
        self.load: Callable[[], Load] = Load
        self.sent: Callable[[], dict[str, int]] = dict
        self.owed: Callable[[], dict[str, int]] = dict
        self.replays: Callable[[], dict[str, int]] = dict
        self.on_reconnect: list[Callable[[], None]] = []
        self.on_tick: list[Callable[[float], None]] = []
        """Called with the loop's time before every regular beat."""
        self.draining = False
        self.failure: str | None = None
        self._subscriptions: list[Subscription] = []
        self._stop = asyncio.Event()
        self._poked: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Connects and listens for beats; the process itself does not beat before `run`."""
        adopt_library_logs(self.log)
        await self.bus.connect()
        await self.bus.subscribe(subjects.beats(), self._heard)

    async def subscribe(self, subject: str, handler: Callable[[Message], None], *, queue: str = "") -> Subscription:
        """As `Bus.subscribe`; the subscription ends with the process."""
        subscription = await self.bus.subscribe(subject, handler, queue=queue)
        self._subscriptions.append(subscription)
        return subscription

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs something beside the rest; a failure is logged, never lost."""

        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception:
                self.log.exception("process.task_failed", task=name)

        task = asyncio.get_running_loop().create_task(guarded(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # one that was cancelled before its first step never ran
        return task

    def publish(self, subject: str, message: msgspec.Struct) -> bool:
        """Encodes and sends one message; False where the bus is down."""
        return self.bus.publish(subject, _encode(message))

    async def run(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Beats until told to stop, then drains: `drain` returns when the last turn has ended.

        Raises:
            EngineFailed: the process cannot go on (`failure` says why).
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self.stop)
        self.spawn(watch_event_loop(self.metrics), "watch_event_loop")
        register(self.metrics, BusCollector(self.bus))
        if self.stage != "frontend":  # whose own metrics tell its turns by model and API
            register(self.metrics, LoadCollector(self.stage, self.load))
        stop_health: Callable[[], Awaitable[None]] = _nothing
        try:
            stop_health = await self._serve_health()
            await self._announce()
            self.log.info("process.ready")
            await self._beat_until_stopped()
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
        """Listens where the configuration says so. Returns what ends it."""
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

    def poke(self) -> None:
        """Something in the beat changed: beat soon, instead of at the next second."""
        if self._poked is None and not self._stop.is_set():
            self._poked = asyncio.get_running_loop().call_later(POKE_DELAY_S, self.beat)

    def beat(self, *, leaving: bool = False) -> None:
        """Publishes one beat now."""
        if self._poked is not None:
            self._poked.cancel()
            self._poked = None
        message = Beat(
            stage=self.stage,
            id=self.id,
            models=self.models,
            draining=self.draining,
            leaving=leaving,
            load=self.load(),
            window=self.config.bus.window_bytes,
            sent=self.sent(),
            owed=self.owed(),
            replays=self.replays(),
            version=VERSION,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        self.publish(subjects.beat(self.stage, self.id), message)

    async def _announce(self) -> None:
        # The first beat takes no work yet: it makes the others answer with theirs, so that whoever gives this process
        # work finds it knowing everybody.
        self.draining = True
        self.beat()
        await asyncio.sleep(ANNOUNCE_S)
        self.draining = False
        self.beat()

    async def _beat_until_stopped(self) -> None:
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
            # A loop that did not run (machine asleep, bus away) heard nobody: that is its own silence, not theirs.
            self.registry.forgive(max(0.0, now - last - interval) if self.bus.connected else now - last, now)
            last = now
            self._tick(now)
            self.beat()

    def _tick(self, now: float) -> None:
        try:
            for peer in self.registry.sweep(now):
                self.log.warning("process.peer_lost", peer=peer.id, peer_stage=peer.stage)
            for callback in self.on_tick:
                callback(now)
        except Exception:
            self.log.exception("process.tick_failed")  # and the heart goes on beating

    async def _drain(self, drain: Callable[[], Awaitable[None]]) -> None:
        self.draining = True
        self.beat()
        self.log.info("process.draining", grace_s=self.config.drain_s)
        self._stop.clear()
        draining = asyncio.ensure_future(drain())
        beating = asyncio.ensure_future(self._beat_until_stopped())
        try:
            done, _ = await asyncio.wait(
                {draining, beating}, timeout=self.config.drain_s, return_when=asyncio.FIRST_COMPLETED
            )
            if draining in done:
                draining.result()
            else:
                self.log.warning("process.drain_cut", reason="second signal" if beating in done else "grace is over")
        finally:
            draining.cancel()
            beating.cancel()
            await asyncio.gather(draining, beating, return_exceptions=True)

    async def _leave(self) -> None:
        for subscription in self._subscriptions:
            await subscription.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.beat(leaving=True)
        await self.bus.close()
        self.log.info("process.left")

    def _heard(self, message: Message) -> None:
        beat = _decode_beat(message.data)
        if beat.id == self.id and beat.stage == self.stage:
            return
        if self.registry.heard(beat, asyncio.get_running_loop().time()):
            self.log.debug("process.peer_joined", peer=beat.id, peer_stage=beat.stage)
            self.poke()  # so that the newcomer knows of this process within milliseconds

    def _not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        return None if self.bus.connected else "the connection to the bus is down"

    def _fatal(self, reason: str) -> None:
        self.stop(failure=reason)

    def _reconnected(self) -> None:
        self.registry.forgive(math.inf, asyncio.get_running_loop().time())
        self.beat()
        for callback in self.on_reconnect:
            callback()


async def _nothing() -> None:
    pass
