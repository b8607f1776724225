"""Reads images of requests from the bucket of the bus, where this command may."""

import time

from cachetools import LRUCache
from msgspec import Struct

from schemas.errors import MEDIA_MISSING, TurnwireError
from services.images.store import ImageStore

KEPT_BYTES = 32 * 1024 * 1024
PAUSE_S = 30.0
"""Time without requests after one that failed: the user `tap` may not read buckets."""
_TYPES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
"""Media types by the first bytes of the data."""


class ImageData(Struct, frozen=True):
    """An image as its client sent it."""

    media_type: str
    data: bytes


class InspectorImages:
    """Images by their hash, which only those who saw the request have."""

    def __init__(self) -> None:
        self._store: ImageStore | None = None
        self._again_at = 0.0
        self._images: LRUCache[str, ImageData] = LRUCache(KEPT_BYTES, lambda image: len(image.data))

    def connect(self, store: ImageStore) -> None:
        """Reads from this bucket from now on."""
        self._store = store

    @property
    def available(self) -> bool:
        """Whether there is a bucket to read from."""
        return self._store is not None

    async def get(self, name: str) -> ImageData | None:
        """An image; None where it cannot be read."""
        if name in self._images:
            return self._images[name]
        if self._store is None or time.monotonic() < self._again_at:
            return None
        try:
            data = await self._store.get(name)
        except TurnwireError as error:
            if error.info.code != MEDIA_MISSING:
                self._again_at = time.monotonic() + PAUSE_S
            return None
        media_type = media_type_of(data)
        if media_type is None:
            return None
        image = ImageData(media_type, data)
        if len(data) <= KEPT_BYTES:
            self._images[name] = image
        return image


def media_type_of(data: bytes) -> str | None:
    """The media type of an image that browsers show as nothing but pixels; None: it is another."""
    return next((kind for start, kind in _TYPES.items() if data.startswith(start)), None)
