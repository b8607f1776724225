"""Image data of every kind, and data that is none."""

import struct
import subprocess
import sys
import zlib
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from services.images.image_data import (
    MAX_BYTES,
    MEDIA_TYPES,
    ImageFacts,
    UnreadableImage,
    image_hash,
    read_facts,
    read_pixels,
)
from tests.kit.every import for_each, for_rows
from tests.kit.vision_model import noise

ORIENTATION = 0x0112
MODES = {"PNG": "1 L LA P RGB RGBA", "JPEG": "L RGB CMYK", "WEBP": "RGB RGBA", "GIF": "1 P"}


def data_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png_chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)


def png_of(width: int, height: int, body: bytes) -> bytes:
    """A PNG with this size in its header and this compressed body."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", body), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@for_rows([(kind, mode) for kind, modes in MODES.items() for mode in modes.split()])
def test_every_kind_and_mode_is_read(kind: str, mode: str) -> None:
    data = data_of(noise(40, 30, 1).convert(mode), kind)
    facts = read_facts(data)
    assert (facts.media_type, facts.width, facts.height) == (MEDIA_TYPES[kind], 40, 30)
    pixels = read_pixels(data)
    assert (pixels.mode, pixels.size) == ("RGB", (40, 30))


@for_each(range(1, 9))
def test_images_are_upright_as_those_of_transformers(turned: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = turned
    for kind in ("JPEG", "PNG"):
        data = data_of(noise(40, 30, 1), kind, exif=exif)
        facts, pixels = read_facts(data), read_pixels(data)
        expected = (30, 40) if turned >= 5 else (40, 30)
        assert (facts.width, facts.height) == pixels.size == expected
        reference = ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB")
        assert kind == "JPEG" or pixels.tobytes() == reference.tobytes()


def test_jpeg_with_thousands_of_scans_is_refused_at_once() -> None:
    """Each scan costs 60 bytes, and goes over all pixels again."""
    whole = data_of(Image.new("L", (600, 600)), "JPEG", progressive=True)
    at = whole.rindex(b"\xff\xda")
    assert read_facts(whole[:-2] + whole[at:-2] * 20 + whole[-2:]).width == 600
    with pytest.raises(UnreadableImage):
        read_facts(whole[:-2] + whole[at:-2] * 200 + whole[-2:])


def test_damaged_exif_fills_no_memory() -> None:
    """Each of Pillow's warnings would be kept and printed."""
    tags = b"".join(struct.pack("<HHII", number, 2, 60_000, 8) for number in range(5000))
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 5000) + tags
    jpeg = data_of(noise(40, 30, 1), "JPEG")
    data = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]
    program = "import sys; from services.images.image_data import read_facts; read_facts(sys.stdin.buffer.read())"
    done = subprocess.run(
        [sys.executable, "-c", program], input=data, capture_output=True, check=True
    )
    assert done.stderr == b""


@for_each(["GIF", "WEBP", "PNG", "MPO"])
def test_first_frame_of_an_animation_counts(kind: str) -> None:
    """MPO: a JPEG of a phone, which has a second image, for example of the brightness."""
    frames = [Image.new("RGB", (20, 10), color) for color in ("red", "lime", "blue")]
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    data = data_of(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    media_type = MEDIA_TYPES["JPEG" if kind == "MPO" else kind]
    assert read_facts(data) == ImageFacts(media_type, 20, 10)
    assert read_pixels(data).getpixel((5, 5)) == ((254, 0, 0) if kind == "MPO" else (255, 0, 0))


def test_other_data_is_refused() -> None:
    too_large = f"image exceeds 5 MB maximum: {MAX_BYTES + 1} bytes > {MAX_BYTES} bytes"
    for data, message in (
        (b"", "Could not process image"),
        (data_of(Image.new("RGB", (9, 9)), "TIFF"), "Could not process image"),
        (data_of(Image.new("RGB", (8001, 1))), "dimensions exceed max allowed size: 8000 pixels"),
        (data_of(Image.new("1", (8000, 8000))), "image exceeds 36000000 pixels maximum"),
        (png_of(50_000, 50_000, zlib.compress(bytes(1000))), "dimensions exceed"),
        (png_of(6000, 6000, zlib.compress(bytes(10))), "Could not process image"),
        (bytes(MAX_BYTES + 1), too_large),
    ):
        for read in (read_facts, read_pixels):
            with pytest.raises(UnreadableImage, match=message):
                read(data)


WHOLE = {kind: data_of(noise(64, 64, 3), kind) for kind in MEDIA_TYPES}


@given(
    kind=st.sampled_from(list(WHOLE)),
    cut=st.floats(0, 1),
    at=st.floats(0, 1),
    byte=st.integers(0, 255),
)
def test_damaged_data_is_read_or_refused(kind: str, cut: float, at: float, byte: int) -> None:
    """Nothing but UnreadableImage is raised, and what has facts has pixels of this size."""
    data = bytearray(WHOLE[kind])
    data[int(at * (len(data) - 1))] = byte
    data = data[: int(cut * len(data)) + 1]
    try:
        facts = read_facts(bytes(data))
    except UnreadableImage:
        return
    assert read_pixels(bytes(data)).size == (facts.width, facts.height)


def test_hash_names_data_and_tenant() -> None:
    asked = [(b"", None), (b"a", None), (b"a", "b"), (b"a", "c"), (b"ab", None), (b"b", "a")]
    names = {image_hash(data, tenant) for data, tenant in asked}
    assert len(names) == len(asked)
    assert {len(name) for name in names} == {40}
    assert image_hash(b"a", "") == image_hash(b"a", None)


def test_image_with_too_many_parts_is_refused_before_it_is_opened() -> None:
    jpeg, png = data_of(noise(8, 8, 1), "JPEG"), data_of(noise(8, 8, 1))
    for whole, at, part in (
        (jpeg, 2, b"\xff\xe5\x00\x02"),
        (png, 33, png_chunk(b"teXt", b"")),
    ):
        assert read_facts(whole[:at] + part * 900 + whole[at:]).width == 8
        with pytest.raises(UnreadableImage):
            read_facts(whole[:at] + part * 100_000 + whole[at:])


def test_texts_of_a_png_are_not_read() -> None:
    """Pillow would inflate each, to a megabyte, and refuse an image with a damaged one."""
    whole = data_of(noise(8, 8, 1))
    texts = png_chunk(b"zTXt", b"k\0\0damaged") * 500 + png_chunk(b"iCCP", b"p\0\0damaged")
    assert read_pixels(whole[:33] + texts + whole[33:]).tobytes() == read_pixels(whole).tobytes()
