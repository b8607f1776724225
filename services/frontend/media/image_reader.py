"""Reads the images of requests, and stores them for the workers.

Agents send every image again with every request. It is decoded once, and stored again only when it
has been in the bucket for half of the time after which the bucket deletes it.
"""

import asyncio
import base64
import binascii
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cachetools import LRUCache
from msgspec.structs import replace

from schemas.conversation import Conversation, Media
from schemas.errors import Invalid
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.media.image_decoder import ImageDecoder
from services.frontend.media.image_fetch import ImageFetcher
from services.frontend.media.pdf_reader import data_key
from services.images.image_data import ImageFacts, image_hash
from services.images.parts import media_of, replace_media
from services.runtime.config.frontend import FrontendConfig

MAX_CACHED = 16384
"""Number of images with cached facts."""
PutImage: TypeAlias = Callable[[str, bytes], Awaitable[None]]
"""Stores an image's data under its hash, as `ImageStore.put`."""


@dataclass(slots=True)
class _Examined:
    """An image that was decoded."""

    hash: str
    facts: ImageFacts
    fresh_until: float = 0.0
    """The event loop's time from which on the image is stored again."""


class ImageReader:
    """Reads images, with a cache."""

    def __init__(
        self,
        config: FrontendConfig,
        put: PutImage | None,
        fetcher: ImageFetcher,
        decoder: ImageDecoder,
    ) -> None:
        """`put`: None if no model gets images."""
        self._fetcher = fetcher
        self._decoder = decoder
        self._max_images = config.max_images
        self._fresh_s = config.image_ttl_s / 2
        self._put = put
        self._examined: LRUCache[tuple[str | None, bytes], _Examined] = LRUCache(MAX_CACHED)
        self._decoding: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One image of each tenant is decoded at a time: a tenant that sends many does not keep
        others waiting, and requests that wait find what the ones before them have decoded."""

    async def read(
        self,
        conversation: Conversation,
        media: Sequence[Media],
        tenant: str | None,
        *,
        vision: bool,
        store: bool,
    ) -> "tuple[Conversation, RequestImages | None]":
        """Returns the conversation with each image as the model gets it, and the images of models
        with vision.

        Args:
            media: the media that the client sent, which are limited: without the pages of
                documents.
            vision: whether the model gets images. If not, they are only dropped.
            store: store the images for the workers.

        Raises Invalid for an image that cannot be used and for too many, and as `Bucket.put`.
        """
        vision = vision and self._put is not None
        if vision:
            urls = [item.url or "" for item in media if self._is_fetched(item)]
            self._check_number(media, len(urls))
            if urls:
                conversation = await self._fetch(conversation, urls, tenant)

        items = [item for item in media_of(conversation) if isinstance(item, InlineImage)]
        if not items:
            return conversation, None
        images = RequestImages([item.source for item in items], self)
        if not vision:
            images.release()
        for item in items:
            await self._read(item, tenant, store)
        conversation = replace_media(conversation, InlineImage, lambda item: [item.read()])
        return conversation, images if vision else None

    async def store(self, source: ImageSource) -> None:
        """Stores an image that was read. Raises as `Bucket.put`."""
        if self._put is not None and source.image is not None and source.data:
            await self._put(source.image.hash, await asyncio.to_thread(_decode, source.data))

    def _check_number(self, media: Sequence[Media], fetched: int) -> None:
        """Raises Invalid for too many images. `fetched`: the number of those by URL."""
        count = fetched + sum(isinstance(item, InlineImage) for item in media)
        if count > self._max_images:
            raise Invalid(
                f"Too much media: 0 document pages + {count} images > {self._max_images}",
                param="messages",
            )

    def _is_fetched(self, item: Media) -> bool:
        if item.kind != "image" or item.hash or item.url is None:
            return False
        return self._fetcher.allows(item.url)

    async def _fetch(
        self, conversation: Conversation, urls: Iterable[str], tenant: str | None
    ) -> Conversation:
        """Returns the conversation with the images that could be fetched."""
        unique = list(dict.fromkeys(urls))
        images = await asyncio.gather(*(self._fetcher.fetch(url, tenant) for url in unique))
        data = {
            url: base64.b64encode(image)
            for url, image in zip(unique, images, strict=True)
            if image is not None
        }

        def with_data(item: Media) -> list[Media]:
            if item.url not in data or not self._is_fetched(item):
                return [item]
            source = ImageSource(data[item.url], Invalid)
            return [InlineImage("image", url=item.url, source=source)]

        return replace_media(conversation, Media, with_data)

    async def _read(self, item: InlineImage, tenant: str | None, store: bool) -> None:
        """Reads an image, unless it was read for an earlier turn of the same request. One at a URL
        may be unreadable: another image there must not end a session."""
        if not item.source.data:
            return
        try:
            await self._read_source(item, tenant, store)
        except Invalid:
            if item.url is None:
                raise

    async def _read_source(self, item: InlineImage, tenant: str | None, store: bool) -> None:
        source = item.source
        examined = await self._examine(source, tenant)
        facts = examined.facts
        if source.strict and facts.media_type != item.media_type:
            raise source.refuse(
                f"The image was specified using the {item.media_type} media type, "
                f"but the image appears to be a {facts.media_type} image"
            )
        source.image = replace(
            item.note(),
            media_type=facts.media_type,
            hash=examined.hash,
            width=facts.width,
            height=facts.height,
        )
        loop = asyncio.get_running_loop()
        if store and examined.fresh_until <= loop.time():
            await self.store(source)
            examined.fresh_until = loop.time() + self._fresh_s

    async def _examine(self, source: ImageSource, tenant: str | None) -> _Examined:
        """Decodes an image, unless the same data was decoded for the same tenant."""
        key = tenant, await data_key(source.data)
        if key not in self._examined:
            async with self._decoding[tenant]:
                if key not in self._examined:
                    self._examined[key] = await self._decode(source, tenant)
        return self._examined[key]

    async def _decode(self, source: ImageSource, tenant: str | None) -> _Examined:
        try:
            data = await asyncio.to_thread(_decode, source.data)
            facts = await self._decoder.read_facts(data)
        except ValueError as error:  # UnreadableImage, or not base64
            raise source.refuse(str(error)) from None
        return _Examined(await asyncio.to_thread(image_hash, data, tenant), facts)


class RequestImages:
    """The images of one request, with their data until its turns are open."""

    def __init__(self, sources: Sequence[ImageSource], reader: ImageReader) -> None:
        self._sources = sources
        self._reader = reader

    async def store(self) -> None:
        """Stores all images again. Raises as `Bucket.put`."""
        for source in self._sources:
            await self._reader.store(source)

    def release(self) -> None:
        """Drops the data."""
        for source in self._sources:
            source.data = ""


def _decode(data: str | bytes) -> bytes:
    return binascii.a2b_base64(data, strict_mode=True)
