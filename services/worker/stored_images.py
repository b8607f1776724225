"""Reads the data of a prompt's images from the bucket that frontends store them in."""

import asyncio
from collections.abc import Sequence

from cachetools import LRUCache

from schemas.errors import RETRY_AFTER_S, TimedOut, Unavailable
from schemas.events import PromptImage
from services.images.store import ImageStore
from services.runtime.config.base import MIB
from services.runtime.config.stores import ImageStoreConfig
from services.runtime.process import Process

CACHE_BYTES = 64 * MIB
_ENTRY_BYTES = 256
CONCURRENT = 4
"""Images of all requests that are read at once, 20 MiB at most: a server of the bus disconnects a
client for which 64 MiB wait."""
FETCH_S = 8.0
"""Longest time for the images of one request. Preprocessors wait longer for the answer."""


class StoredImages:
    """The stored images of one worker's prompts, with a cache: a session sends its images with
    every request."""

    def __init__(self, process: Process) -> None:
        self._store = ImageStore(process.bus, ImageStoreConfig(), process.log)
        self._cache: LRUCache[str, bytes] = LRUCache(CACHE_BYTES, _size)
        self._free = asyncio.Semaphore(CONCURRENT)

    async def read(self, images: Sequence[PromptImage]) -> dict[str, bytes]:
        """Returns the data of images, by hash. Raises Unavailable, with code MEDIA_MISSING if one
        is not stored."""
        hashes = dict.fromkeys(image.hash for image in images)
        reads = {name: asyncio.create_task(self._get(name)) for name in hashes}
        try:
            async with asyncio.timeout(FETCH_S):
                found = await asyncio.gather(*reads.values())
        except (TimedOut, TimeoutError) as error:
            raise Unavailable(
                "the images could not be read in time", retry_after_s=RETRY_AFTER_S
            ) from error
        finally:  # other requests wait for the bucket
            for read in reads.values():
                read.cancel()
        return dict(zip(reads, found, strict=True))

    async def _get(self, image: str) -> bytes:
        data: bytes | None = self._cache.get(image)
        if data is None:
            async with self._free:
                data = self._cache.get(image)  # siblings read the same images
                if data is None:
                    data = self._cache[image] = await self._store.get(image)
        return data


def _size(data: bytes) -> int:
    return len(data) + _ENTRY_BYTES
