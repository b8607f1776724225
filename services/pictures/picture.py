"""Reads pictures: PNG, JPEG, WebP and GIF data. Pure.

Pictures come from anyone. Their size is read from the header, and is bounded before anything is decoded.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

from msgspec import Struct
from PIL import Image, ImageOps

MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
"""Media types by Pillow's formats."""
MAX_SIDE = 8000
"""Most pixels of a side, as in the Messages API."""
MAX_PIXELS = 36_000_000
"""Most pixels: 108 MB when decoded."""
MAX_BYTES = 5 * 1024 * 1024
"""Most bytes of a picture's data, as in the Messages API. A message on the bus has 8 MB."""
_TOO_WIDE = f"At least one of the image dimensions exceed max allowed size: {MAX_SIDE} pixels"
_ORIENTATION = 0x0112
_DIGEST_BYTES = 20


class UnreadablePicture(ValueError):
    """Data that cannot be used as a picture. The text says why, in the words of the Messages API, which clients
    recognize."""


class PictureFacts(Struct, frozen=True):
    """The properties of a picture, as the model gets it."""

    media_type: str
    width: int
    """Pixels, of the upright picture."""
    height: int


def picture_hash(data: bytes, tenant: str | None) -> str:
    """A picture's identity: 40 hexadecimal digits, which differ for different data and for different tenants."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"turnwire-picture")
    digest.update(hashlib.blake2b((tenant or "").encode("utf-8", "surrogatepass")).digest())
    digest.update(data)
    return digest.hexdigest()


def read_facts(data: bytes) -> PictureFacts:
    """The facts of a picture, after it was decoded once. Raises UnreadablePicture."""
    with _opened(data) as image:
        image.load()
        upright = ImageOps.exif_transpose(image) if _turned(image) else image
        return PictureFacts(MEDIA_TYPES[image.format or ""], *upright.size)


def read_pixels(data: bytes) -> Image.Image:
    """A picture as models get it: the first frame, upright, in RGB, without its transparency, as transformers'
    `load_image` makes it. Raises UnreadablePicture."""
    with _opened(data) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def _turned(image: Image.Image) -> bool:
    return bool(image.getexif().get(_ORIENTATION, 1) != 1)


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    if len(data) > MAX_BYTES:
        megabytes = MAX_BYTES // (1024 * 1024)
        raise UnreadablePicture(f"image exceeds {megabytes} MB maximum: {len(data)} bytes > {MAX_BYTES} bytes")
    try:
        with Image.open(BytesIO(data), formats=list(MEDIA_TYPES)) as image:
            width, height = image.size
            if max(width, height) > MAX_SIDE:
                raise UnreadablePicture(_TOO_WIDE)
            if width * height > MAX_PIXELS:
                raise UnreadablePicture(f"image exceeds {MAX_PIXELS} pixels maximum: {width} x {height}")
            yield image
    except UnreadablePicture:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # Pillow's own, higher limits
        raise UnreadablePicture(_TOO_WIDE) from None
    except Exception as error:  # Pillow's decoders raise what damaged data leads to
        raise UnreadablePicture("Could not process image") from error
