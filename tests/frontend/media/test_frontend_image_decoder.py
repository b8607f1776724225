"""Images are decoded in processes of their own, within limits that the system keeps."""

from collections.abc import AsyncIterator

import pytest
import structlog

from services.frontend.media.image_decoder import ImageDecoder
from services.images.image_data import ImageFacts, UnreadableImage
from tests.kit.vision_model import png

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
