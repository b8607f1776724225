"""Replaces the PDFs of a conversation by their text and the images of their pages, which a separate
process makes (`pdf_process`).

Agents send every document again with every request, so contents are cached by a hash of the data.
The same data always has the same content, so the prefix of a session stays.
"""

import asyncio
import hashlib
import sys
from contextlib import suppress

import msgspec
from cachetools import LRUCache

from schemas.conversation import Conversation, Media, Text
from schemas.errors import Invalid
from services.frontend.content.image import ImageSource, InlineImage
from services.frontend.content.pdf_document import PdfContent, PdfDocument, PdfSource
from services.images.parts import media_of, replace_media
from services.runtime.config.base import MIB
from services.runtime.observability.telemetry import FilteringBoundLogger

MAX_CHARS = 1024 * 1024
"""Limit of a document's text: about 250,000 tokens."""
CPU_S = 10
"""CPU limit of one process. A page takes 2 ms."""
WALL_S = 30.0
"""Limit of one process that waits for CPUs."""
MEMORY_BYTES = 1024 * MIB
PROCESSES = 2
"""Number of documents that are read at the same time."""
PAGE_IMAGES = 100
"""Number of pages that are images in one request."""
CACHE_BYTES = 64 * MIB
THREAD_FROM_BYTES = 512 * 1024
"""Larger data is hashed in a thread."""
_ENTRY_BYTES = 256
_PROGRAM = "services.frontend.media.pdf_process"
_OVER_LIMIT = PdfContent(problem="not readable within this server's limits")
_ERROR_CHARS = 2000


class PdfReader:
    """Reads PDFs, with a cache."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        max_pages: int,
        page_images: int = 0,
        *,
        cpu_s: int = CPU_S,
        wall_s: float = WALL_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        """`max_pages`: pages of a document that are read; `page_images`: those of them that are
        also images, for models that see them. The other limits apply to one process."""
        self._log = log
        self._arguments = tuple(map(str, (max_pages, MAX_CHARS, cpu_s, memory_bytes)))
        self._page_images = page_images
        self._wall_s = wall_s
        self._contents: LRUCache[tuple[bytes, int], PdfContent] = LRUCache(CACHE_BYTES, _size)
        self._slots = asyncio.Semaphore(PROCESSES)

    async def read(self, conversation: Conversation, *, vision: bool = False) -> Conversation:
        """Returns the conversation with each PDF replaced by its text, and by the images of its
        pages for models with `vision`; without either, by `Media` with a `problem`.

        The first documents get the images, so that the prompt's prefix stays: up to `PAGE_IMAGES`.
        """
        images_left = PAGE_IMAGES if vision else 0
        for item in media_of(conversation):
            if isinstance(item, PdfDocument):
                content = await self._read(item.source, min(self._page_images, images_left))
                images_left -= len(content.pages)
        return replace_media(conversation, PdfDocument, _parts)

    async def _read(self, source: PdfSource, images: int) -> PdfContent:
        if source.content is None:
            source.content = await self._content(source.data, images)
            source.data = ""
        return source.content

    async def _content(self, data: str, images: int) -> PdfContent:
        key = await data_key(data), images
        content = self._contents.get(key)
        if content is not None:
            return content
        async with self._slots:
            content = self._contents.get(key) or await self._run(data, images)
            if images and content.problem:
                content = await self._run(data, 0)
        with suppress(ValueError):  # larger than everything that is kept
            self._contents[key] = content
        return content

    async def _run(self, data: str, images: int) -> PdfContent:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            _PROGRAM,
            *self._arguments,
            str(images),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._wall_s):
                out, err = await process.communicate(data.encode())
        except TimeoutError:
            self._log.warning("pdf.timeout", base64_bytes=len(data))
            return _OVER_LIMIT
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            error = err.decode(errors="replace")[-_ERROR_CHARS:]
            self._log.warning(
                "pdf.process_failed", status=process.returncode, base64_bytes=len(data), error=error
            )
            return _OVER_LIMIT
        return msgspec.json.decode(out, type=PdfContent)


def _parts(document: PdfDocument) -> list[Text | Media]:
    content = document.source.content or _OVER_LIMIT
    if content.problem:
        return [
            Media(
                document.kind,
                document.media_type,
                document.size_bytes,
                title=document.title,
                problem=content.problem,
            )
        ]
    parts: list[Text | Media] = []
    before = document.source.head
    for text, image in content.pages:
        parts.append(Text(before + text))
        before = "\n\n"
        if image:
            parts.append(InlineImage("image", "image/jpeg", source=ImageSource(image, Invalid)))
    if content.text:
        parts.append(Text(before + content.text))
    return parts


def _size(content: PdfContent) -> int:
    return (
        _ENTRY_BYTES
        + len(content.text)
        + sum(len(text) + len(image) for text, image in content.pages)
    )


async def data_key(data: str | bytes) -> bytes:
    """Returns a hash of a document's or an image's base64."""
    if len(data) > THREAD_FROM_BYTES:
        return await asyncio.to_thread(_hash, data)
    return _hash(data)


def _hash(data: str | bytes) -> bytes:
    # A cryptographic hash: a collision would show one tenant's document to another.
    if isinstance(data, str):
        data = data.encode()
    return hashlib.sha256(data).digest()
