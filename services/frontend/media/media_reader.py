"""Reads the media of a conversation for a model: the text of documents, and the images that the
model gets."""

from collections.abc import Sequence

from schemas.conversation import Conversation, Media
from services.frontend.content.pdf_document import PdfDocument
from services.frontend.media.image_reader import ImageReader, RequestImages
from services.frontend.media.pdf_reader import PdfReader


class MediaReader:
    """Reads documents and images."""

    def __init__(self, pdfs: PdfReader, images: ImageReader) -> None:
        self._pdfs = pdfs
        self._images = images

    async def read(
        self,
        conversation: Conversation,
        media: Sequence[Media],
        tenant: str | None,
        *,
        vision: bool,
        store: bool,
    ) -> tuple[Conversation, RequestImages | None]:
        """Returns the conversation with the text of its documents, and the images that the model
        gets. The arguments and errors are those of `ImageReader.read`."""
        if not media:
            return conversation, None
        if any(isinstance(item, PdfDocument) for item in media):
            conversation = await self._pdfs.read(conversation, vision=vision)
        return await self._images.read(conversation, media, tenant, vision=vision, store=store)
