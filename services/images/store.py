"""The bucket of images: frontends store them once, and workers read them."""

import asyncio

from schemas.errors import MEDIA_MISSING, Unavailable
from services.images.image_data import MAX_BYTES
from services.runtime.config.base import MIB
from services.runtime.config.stores import ImageStoreConfig
from services.runtime.nats.bus import Bus
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.kv import Bucket, BucketConfig

IMAGE_BUCKET = "tw_media"
_SEAL_ROOM = 1024
AGAIN_S = 0.2
"""Pause before an image that is not found is looked for again."""


def image_bucket(config: ImageStoreConfig) -> BucketConfig:
    """Returns the bucket of the images of all models, which frontends write and workers read."""
    return BucketConfig(
        name=IMAGE_BUCKET,
        description="Turnwire: images of requests",
        ttl_s=config.image_ttl_s,
        max_bytes=config.image_store_mb * MIB,
        max_value_bytes=MAX_BYTES + _SEAL_ROOM,
    )


class ImageStore:
    """Images by their hash (`image_hash`), which is tenant-bound and as hard to guess as a
    password."""

    def __init__(
        self,
        bus: Bus,
        config: ImageStoreConfig,
        log: FilteringBoundLogger,
        *,
        patience_s: float = 0.0,
    ) -> None:
        """`patience_s`: how long a call is repeated while the server does not answer."""
        self._bucket = Bucket(bus, image_bucket(config), log, patience_s=patience_s)

    async def put(self, image: str, data: bytes) -> None:
        """Stores an image. Raises as `Bucket.put`."""
        await self._bucket.put(image, data)

    async def get(self, image: str) -> bytes:
        """Returns an image's data. Raises Unavailable, with the code MEDIA_MISSING if the bucket
        does not have it."""
        data = await self._bucket.get(image)
        if data is None:  # a server of a cluster may get it a moment after the leader
            await asyncio.sleep(AGAIN_S)
            data = await self._bucket.get(image)
        if data is None:
            message = (
                "an image of this request is not stored any more, or the bucket tw_media is missing"
            )
            raise Unavailable(message, code=MEDIA_MISSING)
        return data
