"""Reads the images of requests, and stores them for the workers.

Agents send every image again with every request. It is decoded once, and stored again only when it
has been in the bucket for half of the time after which the bucket deletes it.
"""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from cachetools import LRUCache
from msgspec.structs import replace

from schemas.conversation import Conversation, Media
from schemas.errors import Invalid
from services.frontend.media.image import ImageSource, InlineImage
from services.frontend.media.image_fetch import ImageFetcher
from services.frontend.media.pdf_reader import data_key
from services.images.image import ImageFacts, image_hash, read_facts
from services.images.parts import media_of, replace_media
from services.runtime.config import FrontendConfig

CACHED = 16384
"""Number of images with cached facts."""
Put: TypeAlias = Callable[[str, bytes], Awaitable[None]]
"""Stores an image's data under its hash, as `ImageStore.put`."""


@dataclass(slots=True)
class _Known:
    hash: str
    facts: ImageFacts
    fresh_until: float = 0.0
    """The event loop's time from which on the image is stored again."""


class ImageReader:
    """Reads images, with a cache."""

    def __init__(self, config: FrontendConfig, put: Put | None, fetcher: ImageFetcher) -> None:
        """`put`: None if no model gets images."""
        self._fetcher = fetcher
        self._max = config.max_images
        self._fresh_s = config.image_ttl_s / 2
        self._put = put
        self._known: LRUCache[tuple[str | None, bytes], _Known] = LRUCache(CACHED)
        self._decoder = ThreadPoolExecutor(1, "image")
        """Decodes one image at a time, also if clients hang up: it takes up to 550 MB and a second,
        and token streams need the CPUs."""
        self._turn = asyncio.Lock()
        """Requests that wait for the decoder find what the ones before them have decoded."""

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
            linked = [item.url or "" for item in media if self._is_fetched(item)]
            if (
                count := len(linked) + sum(isinstance(item, InlineImage) for item in media)
            ) > self._max:
                raise Invalid(
                    f"Too much media: 0 document pages + {count} images > {self._max}",
                    param="messages",
                )
            if linked:
                conversation = await self._fetch(conversation, linked)
        items = [item for item in media_of(conversation) if isinstance(item, InlineImage)]
        if not items:
            return conversation, None
        images = RequestImages([item.source for item in items], self.store)
        if not vision:
            images.release()
        for item in items:
            if item.source.data:  # not yet read for an earlier turn of the same request
                try:
                    await self._read(item, tenant, store)
                except Invalid:
                    if item.url is None:  # another image at the URL must not end a session
                        raise
        return replace_media(
            conversation, InlineImage, lambda item: [item.read()]
        ), images if vision else None

    async def store(self, source: ImageSource) -> None:
        """Stores an image that was read. Raises as `Bucket.put`."""
        if self._put is not None and source.image is not None and source.data:
            await self._put(source.image.hash, await asyncio.to_thread(_decode, source.data))

    def _is_fetched(self, item: Media) -> bool:
        return (
            item.kind == "image"
            and not item.hash
            and item.url is not None
            and self._fetcher.allows(item.url)
        )

    async def _fetch(self, conversation: Conversation, urls: Iterable[str]) -> Conversation:
        """Returns the conversation with the images that could be fetched."""
        unique = list(dict.fromkeys(urls))
        found = zip(unique, await asyncio.gather(*map(self._fetcher.fetch, unique)), strict=True)
        data = {url: base64.b64encode(image) for url, image in found if image is not None}

        def fetched(item: Media) -> Media:
            if item.url not in data or not self._is_fetched(item):
                return item
            return InlineImage("image", url=item.url, source=ImageSource(data[item.url], Invalid))

        return replace_media(conversation, Media, lambda item: [fetched(item)])

    async def _read(self, item: InlineImage, tenant: str | None, store: bool) -> None:
        source, loop = item.source, asyncio.get_running_loop()
        known = await self._examine(source, tenant)
        facts = known.facts
        if source.strict and facts.media_type != item.media_type:
            specified = f"The image was specified using the {item.media_type} media type"
            raise source.refuse(
                f"{specified}, but the image appears to be a {facts.media_type} image"
            )
        source.image = replace(
            item.note(),
            media_type=facts.media_type,
            hash=known.hash,
            width=facts.width,
            height=facts.height,
        )
        if store and known.fresh_until <= loop.time():
            await self.store(source)
            known.fresh_until = loop.time() + self._fresh_s

    async def _examine(self, source: ImageSource, tenant: str | None) -> _Known:
        key = tenant, await data_key(source.data)
        known = self._known.get(key)
        if known is None:
            async with self._turn:
                if (known := self._known.get(key)) is None:
                    loop = asyncio.get_running_loop()
                    known = self._known[key] = await loop.run_in_executor(
                        self._decoder, _examine, source, tenant
                    )
        return known


class RequestImages:
    """The images of one request, with their data until its turns are open."""

    def __init__(
        self, sources: Sequence[ImageSource], store: Callable[[ImageSource], Awaitable[None]]
    ) -> None:
        self._sources = sources
        self._store = store

    async def store(self) -> None:
        """Stores all images again. Raises as `Bucket.put`."""
        for source in self._sources:
            await self._store(source)

    def release(self) -> None:
        """Drops the data."""
        for source in self._sources:
            source.data = ""


def _decode(data: str | bytes) -> bytes:
    return binascii.a2b_base64(data, strict_mode=True)


def _examine(source: ImageSource, tenant: str | None) -> _Known:
    try:
        data = _decode(source.data)
        return _Known(image_hash(data, tenant), read_facts(data))
    except ValueError as error:  # UnreadableImage, or not base64
        raise source.refuse(str(error)) from None
