"""Announces on the bus that child processes have ended, in their place.

A process that leaves sends a last heartbeat. One that is killed cannot: the others would wait until
its silence counts as death (`dead_after_s`). The supervisor knows at once.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.control import Heartbeat
from schemas.errors import TurnwireError
from services.cli.observer import observing
from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.nats.bus import Bus, Delivery
from services.runtime.observability.telemetry import open_log
from services.runtime.presence.heartbeat_auth import HeartbeatAuth


class ProcessEnds:
    """The processes of this machine and others of its name, by their heartbeats."""

    def __init__(self, config: BusConfig) -> None:
        self._config = config
        self._bus: Bus | None = None
        self._host = socket.gethostname()
        log = open_log(ServiceConfig(log_level="error"))  # the stages log what they refuse
        self._auth = HeartbeatAuth(config.heartbeat_key_file, CollectorRegistry(), log)
        self._last: dict[str, Heartbeat] = {}
        """Process id → its last heartbeat."""
        self._received = asyncio.Event()

    async def follow(self) -> None:
        """Follows heartbeats until cancelled. Returns if there is no bus: then nothing waits for
        an announcement."""
        with suppress(TurnwireError):
            async with observing(self._config, "up", user="frontend", log_level="error") as bus:
                await bus.subscribe(subjects.own_heartbeats(), self.receive)
                self._bus = bus
                await asyncio.Event().wait()

    def receive(self, delivery: Delivery) -> None:
        """Notes a heartbeat."""
        heartbeat = self._auth.decode(delivery.subject, delivery.data)
        if heartbeat is None or heartbeat.host != self._host:
            return
        if heartbeat.leaving:
            self._last.pop(heartbeat.id, None)
        else:
            self._last[heartbeat.id] = heartbeat
            self._received.set()

    async def window(self, model: str, timeout_s: float) -> int:
        """The context window of a model in tokens, which a heartbeat has; 0: none has come in
        time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not any(self._windows(model)):
                    self._received.clear()
                    await self._received.wait()
        return max(self._windows(model), default=0)

    def _windows(self, model: str) -> Iterator[int]:
        cards = chain.from_iterable(last.models for last in self._last.values())
        return (card.max_model_len for card in cards if card.served_name == model)

    def announce(self, id: str) -> None:
        """Sends the last heartbeat of a process that has ended, unless it has sent one itself."""
        last = self._last.pop(id, None)
        if last is None or self._bus is None:
            return
        number = last.number + 1000  # later than those that are under way
        leaving = replace(last, number=number, models=[], draining=True, leaving=True)
        subject = subjects.heartbeat(last.stage, last.id)
        self._bus.publish(subject, self._auth.encode(leaving))
