"""Holds a PDF of a request, from the API dialect that finds it to the reader that replaces it by its text."""

from dataclasses import dataclass

from msgspec import Struct

from schemas.conversation import Media

PDF = "application/pdf"
_PDF_IN_BASE64 = "JVBERi0"
"""`%PDF-` in base64."""


class PdfContent(Struct, frozen=True):
    """What was read from a PDF: text, or the reason why there is none."""

    text: str = ""
    problem: str = ""


@dataclass(slots=True)
class PdfSource:
    """The data of a PDF until it is read, then its content: a stream that is open for long does not hold the data.

    No type of the bus: a PDF that is not replaced cannot be sent by mistake.
    """

    data: str
    """Base64."""
    head: str
    """Stands before the text."""
    content: PdfContent | None = None


class PdfDocument(Media, frozen=True, kw_only=True, tag="media"):
    """A PDF, with its data."""

    source: PdfSource


def document(media_type: str, data: str, size_bytes: int, title: str | None, head: str) -> Media:
    """A document that was sent as base64: a `PdfDocument` if its type is that of a PDF, or if it has no type and begins
    like one."""
    if media_type == PDF or (not media_type and data.startswith(_PDF_IN_BASE64)):
        return PdfDocument("document", PDF, size_bytes, title=title, source=PdfSource(data, head))
    return Media("document", media_type=media_type, size_bytes=size_bytes, title=title)
