"""Bounds the bytes of requests that a frontend holds before their turns: bodies that are read,
unpacked and parsed, and frames that wait on a connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext


class HeldBytes:
    """The bytes of requests that are held for a frontend, a caller or a connection.

    What a part holds (`within`) counts for the whole, too: a caller's bytes for the frontend, a
    connection's for its caller.
    """

    def __init__(self, limit: int, within: "HeldBytes | None" = None) -> None:
        self.limit = limit
        self.held = 0
        self._within = within
        self._freed = asyncio.Event()
        self._next = asyncio.Lock()
        """Held by the one that waits for room; the others come after it, in their order."""

    @asynccontextmanager
    async def wait_for(self, size: int) -> AsyncIterator[None]:
        """Waits until there is room for `size` bytes, and holds them while it is entered.

        Something larger than the limit waits until nothing else is held.
        """
        whole = nullcontext() if self._within is None else self._within.wait_for(size)
        await self._wait_for_room(size)
        try:
            async with whole:
                yield
        finally:
            self._remove(size)

    def add(self, size: int) -> bool:
        """Holds `size` bytes until `free` if there is room for them now. Returns whether there
        was."""
        if self.held + size > self.limit:
            return False
        if self._within is not None and not self._within.add(size):
            return False
        self.held += size
        return True

    def free(self, size: int) -> None:
        """Ends what `add` began."""
        self._remove(size)
        if self._within is not None:
            self._within.free(size)

    async def _wait_for_room(self, size: int) -> None:
        async with self._next:
            while self.held and self.held + size > self.limit:
                self._freed.clear()
                await self._freed.wait()
            self.held += size

    def _remove(self, size: int) -> None:
        self.held -= size
        self._freed.set()
