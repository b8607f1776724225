"""A frontend's rollouts in memory, in place of the bus."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from typing_extensions import override

from schemas.errors import TimedOut, TooLarge, Unavailable
from schemas.notices import FrontendNotice, RolloutChanged
from services.frontend.peers import Peers
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.store import RolloutStore
from services.runtime.config.base import MIB


class MemoryBucket:
    """The values of keys that have several; as `Bucket`, for as many frontends as share it."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.values: dict[str, dict[str | None, tuple[int, bytes]]] = {}
        self.is_away = False
        self.max_value_bytes = 7 * MIB
        self.loses_acknowledgements = False
        """What is written is stored, and counts as not stored."""
        self.delay_s = 0.0
        """How long writing takes, and reading half as long."""

    async def put(self, key: str, value: bytes, member: str | None = None) -> None:
        if self.is_away:
            raise Unavailable("the store is away")
        if len(value) > self.max_value_bytes:
            raise TooLarge("the value is too large")
        await asyncio.sleep(self.delay_s)
        self.offer(key, value, member)
        if self.loses_acknowledgements:
            raise TimedOut("no acknowledgement")

    def offer(self, key: str, value: bytes, member: str | None = None) -> None:
        self.values.setdefault(key, {})[member] = (next(self._numbers), value)

    async def members_after(self, key: str, number: int) -> AsyncIterator[tuple[int, bytes]]:
        if self.is_away:
            raise Unavailable("the store is away")
        while True:
            await asyncio.sleep(self.delay_s / 2)
            later = [pair for pair in self.values.get(key, {}).values() if pair[0] > number]
            if not later:
                return
            pair = min(later)
            number = pair[0]
            yield pair

    async def delete_members(self, key: str) -> None:
        self.values.pop(key, None)


class MemoryRollouts(Peers):
    """A frontend's store of rollouts, and its peers."""

    def __init__(self, bucket: MemoryBucket | None = None, id: str = "frontend-1") -> None:
        self.id = id
        self.memory = bucket or MemoryBucket()
        memory: Any = self.memory
        images: Any = self
        self.store = RolloutStore(memory, images)
        self.dead: set[str] = set()
        self.notices: list[FrontendNotice] = []
        self.images: dict[str, bytes] = {}
        self.peers: list[Rollouts] = []
        """Other frontends, which get its notices."""

    @override
    def is_alive(self, frontend: str) -> bool:
        return frontend not in self.dead

    @override
    def publish(self, notice: FrontendNotice) -> None:
        self.notices.append(notice)
        for peer in self.peers:
            if isinstance(notice, RolloutChanged):
                peer.apply(notice)

    async def get(self, hash: str) -> bytes:
        """An image, as from `ImageStore`."""
        if hash not in self.images:
            raise Unavailable("an image is not stored any more")
        return self.images[hash]
