"""What an engine with vision must do, beside the rules of `tests.worker.conformance`."""

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from PIL import Image
from tokenizers import Tokenizer

from schemas.errors import Invalid
from services.tokenization.image_processor import ImageProcessor
from services.worker.engine import EngineImage, EngineRequest
from services.worker.engine_checks import check
from tests.worker.conformance import Bench, cached, output

MARKUP = {"qwen": ("<|vision_start|>", "<|vision_end|>"), "idefics": ("", "")}
"""What the chat templates of `tests.kit.vision_model` write before and after an image."""


def image(color: str = "red", width: int = 84, height: int = 56) -> bytes:
    """A PNG file."""
    data = BytesIO()
    Image.new("RGB", (width, height), color).save(data, "PNG")
    return data.getvalue()


class VisionPrompts:
    """Prompts with images, for a model of `tests.kit.vision_model`."""

    def __init__(self, model: Path, scheme: str) -> None:
        self.processor = ImageProcessor.load(str(model))
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._before, self._after = MARKUP[scheme]

    def prompt(self, *parts: str | bytes) -> tuple[list[int], list[EngineImage]]:
        """A user's message of texts and images, and the opening of the answer."""
        ids, images = self._ids("<|im_start|>user\n"), []
        for part in parts:
            if isinstance(part, str):
                ids += self._ids(part)
                continue
            ids += self._ids(self._before)
            with Image.open(BytesIO(part)) as image:
                expansion = self._ids(self.processor.expansion(*image.size).text)
            name = blake2b(part, digest_size=20).hexdigest()
            images.append(EngineImage(name, len(ids), len(expansion), part))
            ids += expansion + self._ids(self._after)
        return ids + self._ids("<|im_end|>\n<|im_start|>assistant\n"), images

    def request(self, bench: Bench, *parts: str | bytes, **options: Any) -> EngineRequest:
        """A request with this prompt."""
        ids, images = self.prompt(*parts)
        return with_images(bench, bench.request(ids, **options), images)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def with_images(
    bench: Bench, request: EngineRequest, images: Sequence[EngineImage]
) -> EngineRequest:
    """The request with these images, if the worker lets it through."""
    made = msgspec.structs.replace(request, images=images)
    check(made, bench.info)
    return made


TEXT = "This text is before the image, and it is long enough to fill some blocks of the cache. " * 8


Parts: TypeAlias = list[str | bytes]


def _parts(color: str, after: str) -> Parts:
    return [TEXT, image(color), after]


class VisionConformance:
    """The rules. `bench` and `vision` are fixtures of the subclass."""

    async def test_equal_images_are_found_in_the_cache_and_others_are_not(
        self, bench: Bench, vision: VisionPrompts
    ) -> None:
        if "prefix_cache" not in bench.info.features:
            pytest.skip("no prefix sharing")
        red, blue = (_parts(color, TEXT) for color in ("red", "blue"))
        request = vision.request(bench, *red, max_tokens=4)
        first = await bench.run(request)
        assert cached(first) == 0
        again = await bench.run(vision.request(bench, *red, max_tokens=4))
        assert cached(again) == bench.in_cache(len(request.token_ids) - 1)
        assert output(again) == output(first)
        other = await bench.run(vision.request(bench, *blue, max_tokens=4))
        assert cached(other) == bench.in_cache(request.images[0].at)
        text = await bench.run(bench.request(vision.prompt(TEXT, TEXT)[0], max_tokens=2))
        assert (cached(text) or 0) <= request.images[0].at, "equal text without an image"

    async def test_turn_after_one_with_an_image_finds_it_in_the_cache(
        self, bench: Bench, vision: VisionPrompts
    ) -> None:
        """A session continues with a second image, and its turn is stopped and continued with the
        first one's."""
        request = vision.request(bench, TEXT, image(), max_tokens=40, ignore_eos=True)
        first = [*request.token_ids, *await bench.ids(request)]
        more, images = vision.prompt("And this? ", image("blue"))
        moved = [msgspec.structs.replace(one, at=one.at + len(first)) for one in images]
        again = bench.request([*first, *more], max_tokens=4)
        deltas = await bench.run(with_images(bench, again, [*request.images, *moved]))
        if "prefix_cache" in bench.info.features:
            assert bench.in_cache(len(first) - 1) <= (cached(deltas) or 0) <= len(first)

    async def test_turns_with_different_images_decode_at_once(
        self, bench: Bench, vision: VisionPrompts
    ) -> None:
        parts: list[Parts] = [[TEXT, "?"], *(_parts(color, "?") for color in ("red", "green"))]
        parts.append(["One: ", image("red"), "other: ", image("blue", 200, 300), image("green")])
        alone = [await bench.ids(vision.request(bench, *one, max_tokens=8)) for one in parts]
        asked = [vision.request(bench, *one, max_tokens=8) for one in parts * 2]
        assert await asyncio.gather(*map(bench.ids, asked)) == alone * 2

    async def test_damaged_image_is_refused_and_no_other_request_fails(
        self, bench: Bench, vision: VisionPrompts
    ) -> None:
        request = vision.request(bench, TEXT, image("red", 300, 300), max_tokens=4)
        (whole,) = request.images
        for data in (whole.data[:-40], b"\x89PNG\r\n\x1a\n", b"no image"):
            damaged = msgspec.structs.replace(
                whole, data=data, hash=blake2b(data, digest_size=20).hexdigest()
            )
            with pytest.raises(Invalid):
                await bench.run(with_images(bench, request, [damaged]))
        assert await bench.ids(vision.request(bench, TEXT, image("red", 300, 300), max_tokens=4))
        await bench.idle()
