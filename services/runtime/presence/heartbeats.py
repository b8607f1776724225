"""Sends the heartbeats of one process, receives those of all others, and finds out from its own,
which the bus returns to it, whether the process is cut off.
"""

import asyncio
import math
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat, Load, ModelCard, Stage
from services import __version__
from services.runtime.config.service import BusConfig
from services.runtime.listeners import Listeners
from services.runtime.nats.bus import Bus, Delivery
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.presence.heartbeat_auth import HeartbeatAuth
from services.runtime.presence.liveness import Liveness
from services.runtime.presence.other_protocols import OtherProtocols
from services.runtime.presence.registry import ProcessRegistry

CHANGE_DELAY_S = 0.02
"""Time from a change to its heartbeat, so that a hundred changes in a tick make one heartbeat."""
ANNOUNCE_S = 5 * CHANGE_DELAY_S
"""Time in which all others answer a new process's first heartbeat."""


class LinkStates(NamedTuple):
    """The fields of `Heartbeat` for the links to the receivers of a process's frames, by
    receiver."""

    sent: dict[str, int] = {}
    unacknowledged: dict[str, int] = {}
    replays: dict[str, int] = {}


class Service:
    """A stage of the pipeline in its process: what heartbeats report, and its end."""

    models: Sequence[ModelCard] = ()

    def load(self) -> Load:
        """The number of turns in work."""
        return Load()

    def links(self) -> LinkStates:
        """The state of the links on which this stage sends frames."""
        return LinkStates()

    async def drain(self) -> None:
        """Returns when the last turn has ended. May be cancelled."""


class Heartbeats:
    """The heartbeats of one process, own and others'."""

    def __init__(
        self,
        stage: Stage,
        process: str,
        config: BusConfig,
        bus: Bus,
        *,
        metrics: CollectorRegistry,
        log: FilteringBoundLogger,
    ) -> None:
        """`process`: the id of this process."""
        self.registry = ProcessRegistry(
            config.dead_after_s, config.recovery_s, self._listener_failed
        )
        """All other processes with heartbeats."""
        self.service = Service()
        """The service that the heartbeats report."""
        self.draining = False
        """Whether this process takes no new work."""
        self.on_tick = Listeners[float](self._tick_failed)
        """Called with the loop's time before every regular heartbeat."""
        self.on_attached = Listeners[()](self._listener_failed)
        """Called when this process was cut off and is no longer."""
        self._stage: Stage = stage
        self._process = process
        self._config = config
        self._bus = bus
        self._log = log
        self._auth = HeartbeatAuth(config.heartbeat_key_file, metrics, log)
        self._liveness = Liveness(config)
        self._announced = False
        """Whether heartbeats are sent by themselves: all subscriptions exist."""
        self._number = 0
        """The number of the newest heartbeat."""
        self._timer: asyncio.TimerHandle | None = None
        """Set while a change waits to be sent."""

    def __repr__(self) -> str:
        state = "cut off" if self.cut_off else "attached"
        return f"heartbeats of {self._stage} {self._process}: {self._number} sent, {state}"

    async def start(self, others: OtherProtocols) -> None:
        """Subscribes to heartbeats. None is sent before `announce`."""
        await self._bus.subscribe(subjects.own_heartbeats(), self._on_heartbeat)
        # A second subscription: a bus with the permissions of an earlier release refuses it.
        await self._bus.subscribe(
            subjects.heartbeats(), lambda delivery: others.receive(delivery.subject)
        )

    @property
    def cut_off(self) -> bool:
        """Whether this process lacks messages of the others: its connection is down, or its own
        heartbeats do not come back, because the bus hangs or this process was suspended. What it
        receives now may be old."""
        if not self._bus.connected:
            return True
        return self._announced and self._liveness.silent(_now())

    async def wait_until_attached(self) -> None:
        """Waits while this process is cut off. Afterwards it has received everything that was sent
        meanwhile."""
        while self.cut_off:
            await self._liveness.came_back.wait()

    async def announce(self) -> None:
        """Exchanges first heartbeats with the others. A second call does nothing."""
        if self._announced:
            return
        # The first heartbeat accepts no work. The others answer with theirs, so that this process
        # has all of them before it gets work.
        self._liveness.begin(_now())
        self._announced = True
        self.draining = True
        self.send()
        await asyncio.sleep(ANNOUNCE_S)
        self.draining = False
        self.send()

    def send_soon(self) -> None:
        """Sends a heartbeat before the next interval, because its content has changed."""
        if self._announced and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHANGE_DELAY_S, self.send)

    def send(self, *, leaving: bool = False) -> None:
        """Sends a heartbeat now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._number += 1
        links = self.service.links()
        heartbeat = Heartbeat(
            stage=self._stage,
            id=self._process,
            number=self._number,
            models=list(self.service.models),
            draining=self.draining,
            leaving=leaving,
            load=self.service.load(),
            window_bytes=self._config.window_bytes,
            sent=links.sent,
            unacknowledged=links.unacknowledged,
            replays=links.replays,
            version=__version__,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        subject = subjects.heartbeat(self._stage, self._process)
        if self._bus.publish(subject, self._auth.encode(heartbeat)):
            self._liveness.record_sent(self._number, _now())

    def leave(self) -> None:
        """Sends the last heartbeat, unless none was sent so far."""
        if self._announced:
            self.send(leaving=True)
            self._announced = False

    async def send_until(self, stop: asyncio.Event) -> None:
        """Sends regular heartbeats until `stop` is set."""
        while not stop.is_set():
            try:
                async with asyncio.timeout(self._config.beat_interval_s):
                    await stop.wait()
            except TimeoutError:
                pass
            self.on_tick.call(_now())
            self.send()

    def reconnected(self) -> None:
        """Handles a new connection to the bus."""
        self.registry.discount(math.inf, _now())
        self._liveness.forget_sent()
        if self._announced:
            self.send()

    def _tick_failed(self, error: Exception) -> None:
        self._log.error("process.tick_failed", exc_info=error)

    def _listener_failed(self, error: Exception) -> None:
        if isinstance(error, MemoryError):
            raise error  # the bus ends the process
        self._log.error("process.listener_failed", exc_info=error)

    def _on_heartbeat(self, delivery: Delivery) -> None:
        heartbeat = self._auth.decode(delivery.subject, delivery.data)
        if heartbeat is None:
            return
        if heartbeat.id == self._process and heartbeat.stage == self._stage:
            self._note_return(heartbeat.number, _now())
        elif self.registry.receive(heartbeat, _now()):
            self._log.debug("process.peer_joined", peer=heartbeat.id, peer_stage=heartbeat.stage)
            self.send_soon()  # so that the new process has this one's within milliseconds

    def _note_return(self, number: int, now: float) -> None:
        """Handles an own heartbeat that came back. The silence of another process shows its death
        only up to the time at which this heartbeat was sent: since then the bus may have hung, or
        this process may have been suspended."""
        was_cut_off = self.cut_off
        returned = self._liveness.receive(number, now)
        if returned is None:
            return
        if returned.after_cut:
            # rare: own heartbeats come back after a gap. What waited in the server arrives in any
            # order: the others' heartbeats may follow this one.
            self.registry.discount(math.inf, now)
            self._log.warning("process.was_cut_off", seconds=round(returned.gap_s, 1))
            # when it comes back, everything that waited in the server has arrived
            self.send()
        else:
            self.registry.discount(max(returned.gap_s - self._config.beat_interval_s, 0.0), now)
        if was_cut_off and not self.cut_off:
            # rare: a process was cut off from the bus and is no longer
            self.on_attached.call()
        for peer in self.registry.sweep(returned.sent_at):
            # rare: another process counts as dead
            self._log.warning("process.peer_lost", peer=peer.id, peer_stage=peer.stage)


def _now() -> float:
    return asyncio.get_running_loop().time()
