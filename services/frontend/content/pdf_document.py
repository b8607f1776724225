"""Holds a PDF of a request until `pdf_reader` replaces it by its text."""

from dataclasses import dataclass

from msgspec import Struct

from schemas.conversation import Media

PDF = "application/pdf"
_PDF_IN_BASE64 = "JVBERi0"
"""`%PDF-` in base64."""


class PdfContent(Struct, frozen=True):
    """The content of a PDF, or the reason why it has none."""

    pages: list[tuple[str, str]] = []
    """Text and image (JPEG in base64) of the first pages, if the model sees images. "" for a
    damaged page."""
    text: str = ""
    """Text of the other pages."""
    problem: str = ""


@dataclass(slots=True)
class PdfSource:
    """The data of a PDF until it is read, then its content, so that a long stream does not keep the
    data in memory.

    Admission does that before anything is sent on the bus.
    """

    data: str
    """Base64."""
    head: str
    """Text to put before the PDF's text."""
    content: PdfContent | None = None


class PdfDocument(Media, frozen=True, kw_only=True, tag="media"):
    """A PDF, with its data."""

    source: PdfSource


def make_document(
    media_type: str, data: str, size_bytes: int, title: str | None, head: str
) -> Media:
    """Returns a document that was sent as base64: a `PdfDocument` if it has the media type of a
    PDF, or no media type and the first bytes of a PDF."""
    if media_type == PDF or (not media_type and data.startswith(_PDF_IN_BASE64)):
        return PdfDocument("document", PDF, size_bytes, title=title, source=PdfSource(data, head))
    return Media("document", media_type=media_type, size_bytes=size_bytes, title=title)
