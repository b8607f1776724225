"""Passes the messages of the bus to a fold. After the bus was lost, follows the next `turnwire up`
with the same state directory."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from msgspec import Struct

from schemas import subjects
from schemas.errors import TurnwireError
from services.cli.common import CommandError
from services.cli.instances import Instance, instance_on, successor_of
from services.cli.observer import observing
from services.images.store import ImageStore
from services.runtime.config.masking import mask_servers
from services.runtime.config.service import BusConfig, ServiceConfig
from services.runtime.config.stores import ImageStoreConfig
from services.runtime.nats.bus import Bus, Delivery
from services.runtime.observability.telemetry import open_log
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.images import InspectorImages
from turnwire_tools.tap import messages

CHECK_S = 0.5
"""How often the connection is looked at."""


class TurnSource(Struct):
    """Where the turns come from."""

    name: str
    """Files, or the bus without its password."""
    live: bool = True
    """It is a bus."""
    lost_at: float | None = None
    """Unix time since when the bus is lost; None: it is connected."""


class BusFollower:
    """Passes the messages of the bus to a fold, and the images of its bucket to the page."""

    def __init__(
        self,
        config: BusConfig,
        env: Mapping[str, str],
        fold: Fold,
        images: InspectorImages,
        source: TurnSource,
        *,
        on_next: Callable[[Instance], None],
    ) -> None:
        """`on_next`: called with the instance that it follows next; may block."""
        self._config = config
        self._env = env
        self._fold = fold
        self._images = images
        self._source = source
        self._on_next = on_next
        self._instance = instance_on(config.nats_url, env)
        self._stack = AsyncExitStack()
        self._fault = ""

    async def __aenter__(self) -> "BusFollower":
        """Connects; from then on every message arrives. Raises TurnwireError."""
        self._bus = await self._connect()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def stay(self) -> int:
        """Follows, until it is cancelled. Raises CommandError if the server closes the connection
        because of an error of this client."""
        while not self._fault:
            await asyncio.sleep(CHECK_S)
            if self._bus.connected:
                self._source.lost_at = None
                continue
            if self._source.lost_at is None:
                self._source.lost_at = time.time()
            await self._move()
        raise CommandError(self._fault)

    async def _move(self) -> None:
        """Goes on with the bus of the instance's successor, if there is one."""
        if self._instance is None:
            return
        successor = await asyncio.to_thread(successor_of, self._instance, self._env)
        if successor is None:
            return
        self._instance = successor
        self._config = replace(self._config, nats_url=successor.nats_url)
        await self._stack.aclose()
        await asyncio.to_thread(self._on_next, successor)
        try:
            self._bus = await self._connect()
        except TurnwireError as error:  # it has ended, too
            print(f"turnwire inspect: {error.info.message}", file=sys.stderr)

    async def _connect(self) -> Bus:
        config = self._config
        log = open_log(ServiceConfig(log_level="error"))
        store = await self._stack.enter_async_context(
            observing(config, "inspect-images", log_level="error")  # the other one logs its end
        )
        self._images.connect(ImageStore(store, ImageStoreConfig(), log))
        bus = await self._stack.enter_async_context(observing(config, "inspect", self._end))
        # One subscription, which keeps the order of all messages.
        await bus.subscribe(subjects.ALL, self._take)
        await bus.flush()
        self._source.name = mask_servers(config.nats_url)
        print(f"listening on {subjects.ALL} at {self._source.name}", file=sys.stderr)
        return bus

    def _take(self, delivery: Delivery) -> None:
        message = messages.of_turn(delivery.subject, delivery.data)
        now = messages.sent_at(message, time.time())
        self._fold.take(message, now, messages.receiver_of(delivery.subject))

    def _end(self, reason: str) -> None:
        self._fault = reason
