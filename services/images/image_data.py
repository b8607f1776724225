"""Reads images: PNG, JPEG, WebP and GIF data. Pure.

Images come from anyone. Their size is read from the header, and is bounded before anything is
decoded.
"""

import hashlib
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import NamedTuple

from msgspec import Struct
from PIL import Image

MEDIA_TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
"""Media types by Pillow's formats."""
_JPEG = ("JPEG", "MPO")
"""Phones save several images in one JPEG, which Pillow calls MPO. The first one counts."""
MAX_SIDE = 8000
"""Most pixels of a side, as in the Messages API."""
MAX_PIXELS = 36_000_000
"""Most pixels: 144 MB when decoded, and four times as much while a WebP is."""
MAX_BYTES = 5 * 1024 * 1024
"""Most bytes of an image's data, as in the Messages API. A message on the bus has 8 MB."""
_TOO_WIDE = f"At least one of the image dimensions exceed max allowed size: {MAX_SIDE} pixels"
_MAX_SCANS = 100
"""Most scans of a JPEG. Progressive ones have ten; each takes 8 ms in the largest image, and 60
bytes."""
_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_PARTS = 1000
"""Most chunks of a PNG but those of its pixels, and most segments of a JPEG before its pixels: a
color profile of 16 MB has 255."""
_START_OF_SCAN = 0xFFDA
_FIRST_MARKER = 0xFF01
_ORIENTATION = 0x0112
_EXIF_SHORT = 3
_EXIF_ENTRY_BYTES = 12
_MAX_EXIF_ENTRIES = 1000
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Turns that make an image upright, by its EXIF orientation."""
_SIDEWAYS = [_TURNS[orientation] for orientation in (5, 6, 7, 8)]
_DIGEST_BYTES = 20
# Their texts come from the data, and Python would keep each.
warnings.filterwarnings("ignore", module=r"PIL\.")


class UnreadableImage(ValueError):
    """Data that cannot be used as an image. The text says why, in the words of the Messages API,
    which clients recognize."""


class ImageFacts(Struct, frozen=True):
    """The properties of an image, as the model gets it."""

    media_type: str
    width: int
    """Pixels, of the upright image."""
    height: int


def image_hash(data: bytes, tenant: str | None) -> str:
    """An image's identity: 40 hexadecimal digits, which differ for different data and for different
    tenants."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"turnwire-image")
    digest.update(hashlib.blake2b((tenant or "").encode("utf-8", "surrogatepass")).digest())
    digest.update(data)
    return digest.hexdigest()


def read_facts(data: bytes) -> ImageFacts:
    """The facts of an image, after it was decoded once. Raises UnreadableImage."""
    with _opened(data) as image:
        image.load()
        width, height = image.size
        if _turn(image) in _SIDEWAYS:
            width, height = height, width
        return ImageFacts(
            MEDIA_TYPES["JPEG" if image.format in _JPEG else image.format or ""], width, height
        )


def read_pixels(data: bytes) -> Image.Image:
    """An image as models get it: the first frame, upright, in RGB, without its transparency, as
    transformers' `load_image` makes it. Raises UnreadableImage."""
    with _opened(data) as image:
        image.load()  # a PNG's EXIF may come after its pixels
        turn = _turn(image)
        return (image if turn is None else image.transpose(turn)).convert("RGB")


def _turn(image: Image.Image) -> Image.Transpose | None:
    return _TURNS.get(exif_orientation(image.info.get("exif", b"")))


def exif_orientation(exif: bytes) -> int:
    """The orientation in EXIF data; 0: there is none. Source: Exif 3.0, 4.6.2 and 4.6.5.

    Pillow's own reader reads all entries, and each may name megabytes.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 0
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(min(count, _MAX_EXIF_ENTRIES)):
            tag, kind, _, value = struct.unpack_from(
                order + "HHIH", tiff, directory + 2 + entry * _EXIF_ENTRY_BYTES
            )
            if (tag, kind) == (_ORIENTATION, _EXIF_SHORT):
                return int(value)
    except struct.error:  # cut
        pass
    return 0


def _needed(data: bytes) -> bytes:
    """The parts of an image's data that its pixels and its orientation need. Raises UnreadableImage
    for more parts than an image has.

    Pillow inflates every text and color profile of a PNG, and its time grows with the number of
    parts, in places with its square.
    """
    if data.startswith(_PNG):
        chunks = list(_png_chunks(data))
        if sum(chunk.name != b"IDAT" for chunk in chunks) > _MAX_PARTS:
            raise UnreadableImage("Could not process image")
        needed = [data[chunk.start : chunk.end] for chunk in chunks if _is_needed(chunk.name)]
        return b"".join([_PNG, *needed])
    if data.startswith(b"\xff\xd8") and sum(1 for _ in _jpeg_segments(data)) > _MAX_PARTS:
        raise UnreadableImage("Could not process image")
    return data


class _Chunk(NamedTuple):
    """A chunk of a PNG, and where it is in the data."""

    name: bytes
    start: int
    end: int


def _png_chunks(data: bytes) -> Iterator[_Chunk]:
    """Source: PNG 3, 5.3. The last one may be cut."""
    at = len(_PNG)
    while at + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 12 + length
        yield _Chunk(data[at + 4 : at + 8], at, end)
        at = end


def _is_needed(chunk: bytes) -> bool:
    """Whether a chunk of a PNG counts for its pixels or its orientation. The names of those without
    which it cannot be read begin with a capital."""
    return chunk[:1].isupper() or chunk in (b"tRNS", b"eXIf")


def _jpeg_segments(data: bytes) -> Iterator[int]:
    """The markers of a JPEG's segments before its first scan. Source: ITU-T T.81, B.1."""
    at = 2
    while at + 4 <= len(data):
        marker, length = struct.unpack_from(">HH", data, at)
        if marker == _START_OF_SCAN or marker < _FIRST_MARKER:
            return
        yield marker
        at += 2 + max(length, 2)


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    if len(data) > MAX_BYTES:
        megabytes = MAX_BYTES // (1024 * 1024)
        raise UnreadableImage(
            f"image exceeds {megabytes} MB maximum: {len(data)} bytes > {MAX_BYTES} bytes"
        )
    data = _needed(data)
    try:
        with Image.open(BytesIO(data), formats=list(MEDIA_TYPES)) as image:
            width, height = image.size
            if max(width, height) > MAX_SIDE:
                raise UnreadableImage(_TOO_WIDE)
            if width * height > MAX_PIXELS:
                raise UnreadableImage(
                    f"image exceeds {MAX_PIXELS} pixels maximum: {width} x {height}"
                )
            if image.format in _JPEG and data.count(b"\xff\xda") > _MAX_SCANS:
                raise UnreadableImage("Could not process image")
            yield image
    except UnreadableImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        # Pillow's own limits, which are higher.
        raise UnreadableImage(_TOO_WIDE) from None
    except Exception as error:  # Pillow's decoders raise what damaged data leads to
        raise UnreadableImage("Could not process image") from error
