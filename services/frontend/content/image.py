"""Holds an image of a request until `image_reader` replaces it by a reference to its data. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from schemas.conversation import Conversation, Media
from schemas.errors import Invalid
from services.images.parts import replace_media


@dataclass(slots=True, eq=False)
class ImageSource:
    """The data of an image until the request's turns are open, so that a long stream does not keep
    it in memory.

    The bus cannot encode this type, so the data cannot be sent by mistake.
    """

    data: str | bytes
    """Base64."""
    refuse: Callable[[str], Invalid]
    """Makes the error for an image that cannot be used, from the reason."""
    strict: bool = False
    """The data must have the media type that the client states."""
    image: Media | None = None
    """The image as the model gets it, once it is read."""


class InlineImage(Media, frozen=True, kw_only=True, tag="media"):
    """An image, with its data."""

    source: ImageSource

    def note(self) -> Media:
        """Returns the image as a model without vision gets it."""
        return Media(self.kind, self.media_type, self.size_bytes, self.url)

    def read(self) -> Media:
        """Returns the image as the model gets it."""
        return self.source.image or self.note()


def without_images(conversation: Conversation) -> Conversation:
    """Returns the conversation for a model without vision."""
    return replace_media(conversation, Media, _note)


def _note(item: Media) -> list[Media]:
    if isinstance(item, InlineImage):
        return [item.note()]
    return [replace(item, hash="", width=0, height=0)]
