"""Images are decoded in processes of their own, within limits that the system keeps."""

import asyncio
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from services.frontend.media.image_decoder import ImageDecoder
from services.images.image import MAX_BYTES, ImageFacts, UnreadableImage
from tests.frontend.media.media_apis import CHAT, Store, encoded, image, seeing
from tests.kit.frontend import serving
from tests.kit.vision_model import png
from tests.kit.waiting import LIMIT_S

PNG = png(40, 30, 1)
FACTS = ImageFacts("image/png", 40, 30)


@pytest.fixture
async def decoder() -> AsyncIterator[ImageDecoder]:
    decoder = ImageDecoder(structlog.get_logger())
    yield decoder
    await decoder.close()


async def test_facts_and_refusals_are_those_of_the_image(decoder: ImageDecoder) -> None:
    for _ in range(2):
        assert await decoder.read_facts(PNG) == FACTS
        for damaged in (b"", PNG[:60], b"no image"):
            with pytest.raises(UnreadableImage, match="Could not process image"):
                await decoder.read_facts(damaged)
        await decoder.close()  # its processes start again


async def test_image_that_ends_its_process_is_refused_and_the_next_one_is_read() -> None:
    """Beyond the time, and beyond the memory."""
    log = structlog.get_logger()
    for strict in (ImageDecoder(log, wall_s=0.0), ImageDecoder(log, memory_bytes=1024)):
        with pytest.raises(UnreadableImage, match="Could not process image"):
            await strict.read_facts(PNG)
        await strict.close()


@pytest.mark.slow
def test_cpu_time_is_limited_by_the_system() -> None:
    program = (
        "from services.frontend.media.process_limits import limit_cpu\n"
        "limit_cpu(1)\n"
        "while True: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGXCPU


def chunk(name: bytes, content: bytes = b"") -> bytes:
    """A part of a PNG."""
    data = name + content
    return struct.pack(">I", len(content)) + data + struct.pack(">I", zlib.crc32(data))


def png_of(*chunks: bytes, side: int = 8, depth: int = 8) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND")


def hostile() -> list[bytes]:
    """Headers of great size, and data that unpacks to it."""
    bomb = zlib.compress(bytes(200_000_000), 9)
    body = chunk(b"IDAT", zlib.compress(bytes(8 * 25)))
    long_comment = b"\x21\xfe" + (b"\xff" + b"A" * 255) * 4000 + b"\0"
    return [
        *(png_of(body, side=side) for side in (8001, 2**31 - 1)),
        png_of(chunk(b"IDAT", bomb)),
        png_of(chunk(b"IDAT", bomb), side=6000, depth=16),
        png_of(chunk(b"iCCP", b"a\0\0" + bomb), body),
        png_of(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000))) * 80, body),
        png_of(chunk(b"IDAT") * 50_000, body),
        b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + long_comment + b";",
        *(image(6000, 6000, kind) for kind in ("WEBP", "PNG", "JPEG")),
        bytes(MAX_BYTES + 1),
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux' numbers of memory")
async def test_hostile_images_harm_neither_the_server_nor_other_requests() -> None:
    """Each is read or refused with status 400, and other requests are answered meanwhile."""
    data = [encoded(one) for one in hostile()] + ["", "AA=A", "AAAA\nAAAA", "\ud800"]
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    async with serving(seeing(), put_image=Store().put) as served:

        async def others() -> None:
            while True:
                async with asyncio.timeout(10):
                    assert await CHAT.said(served, CHAT.body("Hi."))
                await asyncio.sleep(0.01)

        meanwhile = asyncio.create_task(others())
        asked = (served.post(CHAT.path, CHAT.body([CHAT.image(one)])) for one in data)
        replies = await asyncio.gather(*asked)
        assert not meanwhile.done(), meanwhile
        meanwhile.cancel()
        assert {reply.status for reply in replies} == {200, 400}
    assert memory_mb("VmHWM") - before < 800, "a WebP of the largest size takes 550"


def memory_mb(name: str) -> int:
    """`VmRSS`: the memory of this process; `VmHWM`: its peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) // 1024
