"""Media whose bytes are not known any more: filler of the same type and size."""

from schemas.conversation import Media


def filler(size_bytes: int | None) -> str:
    """Base64 that decodes to so many bytes."""
    whole, rest = divmod(size_bytes or 0, 3)
    return "AAAA" * whole + ("", "AA==", "AAA=")[rest]


def data_url(media: Media) -> str:
    """A URL that holds filler."""
    return f"data:{media.media_type};base64,{filler(media.size_bytes)}"
