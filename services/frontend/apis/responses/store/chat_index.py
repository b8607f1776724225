"""Lists the chat completions in a bucket. The bucket's keys are digests and cannot be listed.

The ids of each tenant are in lists of their own in the bucket, one for each span of time, so that a list stays small,
and expires with the last completion in it.
"""

import asyncio
import random
from collections.abc import Callable

import msgspec

from services.runtime.storage.kv import Bucket, digest_key

SPANS = 64
"""In the time for which a response is stored."""
CONFLICT_S = 0.05
"""Longest pause after another process was faster."""
Entry = tuple[float, str]
"""When a completion was created, in seconds of Unix time, and its id."""


class ChatIndex:
    """The ids of all tenants' chat completions. Every method raises TurnwireError where the bucket does not answer."""

    def __init__(self, bucket: Bucket, ttl_s: float, clock: Callable[[], float]) -> None:
        """`clock`: Unix time in seconds."""
        self._bucket = bucket
        self._ttl_s = ttl_s
        self._span_s = ttl_s / SPANS
        self._clock = clock
        self._pending: dict[str, set[Entry]] = {}
        """By key: entries that wait for the write under way."""

    async def add(self, tenant: str | None, created: float, id: str) -> None:
        """Lists a completion. Entries that come while a list is written share its next write."""
        key = self._key(tenant, int(created / self._span_s))
        if key in self._pending:
            self._pending[key].add((created, id))
            return
        self._pending[key] = {(created, id)}
        try:
            while fresh := self._pending[key]:
                self._pending[key] = set()
                while True:
                    revision = await self._bucket.revision(key)
                    entries = _entries(revision.value)
                    if fresh <= entries:
                        break
                    value = msgspec.json.encode(sorted(entries | fresh))
                    if await self._bucket.replace(key, value, revision.number):
                        break
                    await asyncio.sleep(random.uniform(0, CONFLICT_S))
        finally:
            del self._pending[key]

    async def entries(self, tenant: str | None) -> set[Entry]:
        """The entries of one tenant, those of deleted completions included."""
        now = self._clock()
        # Another host's clock may be ahead.
        spans = range(int((now - self._ttl_s) / self._span_s), int(now / self._span_s) + 2)
        values = await asyncio.gather(*(self._bucket.get(self._key(tenant, span)) for span in spans))
        return set().union(*map(_entries, values))

    def _key(self, tenant: str | None, span: int) -> str:
        return digest_key(tenant, "chats", str(span))


def _entries(value: bytes | None) -> set[Entry]:
    return set() if value is None else _decode(value)


_decode = msgspec.json.Decoder(set[Entry]).decode
