"""Images made to harm a server: each is read or refused with status 400, and other requests are
answered meanwhile."""

import asyncio
import struct
import sys
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from services.images.image import MAX_BYTES
from tests.frontend.media.media_apis import CHAT, Store, encoded, image, seeing
from tests.kit.frontend import serving

PEAK_MB = 800
"""A WebP of the largest size takes 550 while it is decoded."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
BOMB = zlib.compress(bytes(200_000_000), 9)


def chunk(name: bytes, content: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def png(*chunks: bytes, width: int = 8, height: int = 8, depth: int = 8) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    return SIGNATURE + chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IEND")


def gif(width: int, height: int, *blocks: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b"".join(blocks) + b";"


def animation(kind: str) -> bytes:
    frames = [Image.new("RGB", (64, 64), (number, 0, 0)) for number in range(40)]
    out = BytesIO()
    frames[0].save(out, kind, save_all=True, append_images=frames[1:])
    return out.getvalue()


def bombs() -> Iterator[bytes]:
    """Headers of great size, and data that unpacks to it."""
    body = chunk(b"IDAT", zlib.compress(bytes(8 * 25)))
    for side in (8001, 65_535, 2**31 - 1):
        yield png(body, width=side, height=side)
        yield gif(min(side, 65_535), min(side, 65_535))
    yield png(chunk(b"IDAT", BOMB))
    yield png(chunk(b"IDAT", BOMB), width=6000, height=6000, depth=16)
    for name in (b"iCCP", b"zTXt"):
        yield png(chunk(name, b"a\0\0" + BOMB), body)
    yield png(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000))) * 80, body)
    yield png(chunk(b"IDAT") * 50_000, body)
    yield gif(9, 9, b"\x21\xfe" + (b"\xff" + b"A" * 255) * 4000 + b"\0")
    whole = image(64, 64, "JPEG", progressive=True)
    at = whole.rindex(b"\xff\xda")
    yield whole[:-2] + whole[at:-2] * 50_000 + whole[-2:]
    yield from (image(6000, 6000, kind) for kind in ("WEBP", "PNG", "JPEG"))
    yield bytes(MAX_BYTES + 1)


def odd() -> Iterator[bytes]:
    """Unusual images that are read."""
    yield from map(animation, ("GIF", "WEBP", "PNG"))
    yield from (image(1, 1, kind) for kind in ("PNG", "JPEG", "GIF", "WEBP"))
    yield image(8000, 1)


def damaged() -> Iterator[bytes]:
    """Cut or changed at many places, or of a type that is not read."""
    chance = Random(7)
    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        whole = image(64, 48, kind)
        for number in range(8):
            yield whole[: len(whole) * number // 8 + 1]
            changed = bytearray(whole)
            changed[chance.randrange(len(whole))] ^= 1 + chance.randrange(255)
            yield bytes(changed)
    yield from (image(8, 8, kind) for kind in ("BMP", "TIFF", "ICO", "PPM"))
    yield b"RIFF\xff\xff\xff\xffWEBPVP8L"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux' numbers of memory")
async def test_hostile_images_harm_neither_the_server_nor_other_requests() -> None:
    hostile, unusual = [*bombs(), *damaged()], list(odd())
    store, gateway = Store(), seeing()
    statuses: list[int] = []
    before = memory_mb("VmRSS")
    # The peak starts again: the images took some memory to make.
    Path("/proc/self/clear_refs").write_text("5")
    async with serving(gateway, put_image=store.put) as served:

        async def ask(data: str) -> int:
            """Returns the status. Chat takes data of any type."""
            return (await served.post(CHAT.path, CHAT.body([CHAT.image(data)]))).status

        async def others() -> int:
            count = 0
            while True:
                async with asyncio.timeout(10):
                    assert await CHAT.said(served, CHAT.body("Hi."))
                count += 1
                await asyncio.sleep(0.01)

        meanwhile = asyncio.create_task(others())
        statuses += await asyncio.gather(*(ask(encoded(data)) for data in hostile))
        assert not meanwhile.done(), meanwhile
        meanwhile.cancel()
        assert set(statuses) == {200, 400}
        assert [await ask(encoded(data)) for data in unusual] == [200] * len(unusual)
        for garbage in ("", "AA=A", "AAAA\nAAAA", "\ud800", "ÄÄÄÄ"):
            assert await ask(garbage) == 400
    assert memory_mb("VmHWM") - before < PEAK_MB


def memory_mb(name: str) -> int:
    """`VmRSS`: the memory of this process; `VmHWM`: its peak."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    )
    return int(line.split()[1]) // 1024
