"""What an engine with vision must do, beside the rules of `tests.worker.conformance`.

A subclass has two fixtures: `bench`, an engine on a model of `tests.vision_model`, and `vision`, the prompts for it.
"""

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
from services.tokenization.picture_processor import PictureProcessor
from services.worker.admission import check
from services.worker.engine import EnginePicture, EngineRequest
from tests.worker.conformance import Bench, cached, output

MARKUP = {"qwen": ("<|vision_start|>", "<|vision_end|>"), "idefics": ("", "")}
"""What the chat templates of `tests.vision_model` write before and after a picture."""


def picture(color: str = "red", width: int = 84, height: int = 56) -> bytes:
    """A PNG file."""
    data = BytesIO()
    Image.new("RGB", (width, height), color).save(data, "PNG")
    return data.getvalue()


class VisionPrompts:
    """Prompts with pictures, for a model of `tests.vision_model`."""

    def __init__(self, model: Path, scheme: str) -> None:
        processor = PictureProcessor.load(str(model))
        assert processor is not None
        self.processor = processor
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._before, self._after = MARKUP[scheme]

    def prompt(self, *parts: str | bytes, assistant: bool = True) -> tuple[list[int], list[EnginePicture]]:
        """A user's message of texts and pictures, and the opening of the answer."""
        ids, pictures = self._ids("<|im_start|>user\n"), []
        for part in parts:
            if isinstance(part, str):
                ids += self._ids(part)
                continue
            ids += self._ids(self._before)
            with Image.open(BytesIO(part)) as image:
                expansion = self._ids(self.processor.expansion(*image.size).text)
            name = blake2b(part, digest_size=20).hexdigest()
            pictures.append(EnginePicture(name, len(ids), len(expansion), part))
            ids += expansion + self._ids(self._after)
        return ids + self._ids("<|im_end|>\n" + "<|im_start|>assistant\n" * assistant), pictures

    def request(self, bench: Bench, *parts: str | bytes, **options: Any) -> EngineRequest:
        """A request with this prompt."""
        ids, pictures = self.prompt(*parts)
        return with_pictures(bench, bench.request(ids, **options), pictures)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def with_pictures(bench: Bench, request: EngineRequest, pictures: Sequence[EnginePicture]) -> EngineRequest:
    """The request with these pictures, if the worker lets it through."""
    made = msgspec.structs.replace(request, pictures=pictures)
    check(made, bench.info)
    return made


TEXT = "This text is before the picture, and it is long enough to fill some blocks of the cache. " * 8


Parts: TypeAlias = list[str | bytes]


def _parts(color: str, after: str) -> Parts:
    return [TEXT, picture(color), after]


class VisionConformance:
    """The rules. `bench` and `vision` are fixtures of the subclass."""

    async def test_pictures_are_decoded(self, bench: Bench, vision: VisionPrompts) -> None:
        parts: Parts = [
            "One: ",
            picture("red"),
            " and another: ",
            picture("blue", 200, 300),
            picture("green"),
            " What is it?",
        ]
        deltas = await bench.run(vision.request(bench, *parts, max_tokens=8, ignore_eos=True))
        assert len(output(deltas)) == 8
        assert cached(deltas) is not None

    async def test_equal_pictures_are_found_in_the_cache_and_others_are_not(
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
        assert cached(other) == bench.in_cache(request.pictures[0].at)

    async def test_equal_text_without_a_picture_shares_nothing_with_a_picture(
        self, bench: Bench, vision: VisionPrompts
    ) -> None:
        """The text before it is shared, also where there is nothing else."""
        if "prefix_cache" not in bench.info.features:
            pytest.skip("no prefix sharing")
        request = vision.request(bench, TEXT, picture(), TEXT, max_tokens=2)
        await bench.run(request)
        text = await bench.run(bench.request(vision.prompt(TEXT, TEXT)[0], max_tokens=2))
        assert (cached(text) or 0) <= request.pictures[0].at

    async def test_turn_after_one_with_a_picture_finds_it_in_the_cache(
        self, bench: Bench, vision: VisionPrompts
    ) -> None:
        """A session continues with a second picture, and its turn is stopped and continued with the first one's."""
        request = vision.request(bench, TEXT, picture(), max_tokens=40, ignore_eos=True)
        first = [*request.token_ids, *await bench.ids(request)]
        more, pictures = vision.prompt("And this? ", picture("blue"))
        moved = [msgspec.structs.replace(one, at=one.at + len(first)) for one in pictures]
        again = bench.request([*first, *more], max_tokens=4)
        deltas = await bench.run(with_pictures(bench, again, [*request.pictures, *moved]))
        if "prefix_cache" in bench.info.features:
            assert bench.in_cache(len(first) - 1) <= (cached(deltas) or 0) <= len(first)

    async def test_turns_with_different_pictures_decode_at_once(self, bench: Bench, vision: VisionPrompts) -> None:
        parts: list[Parts] = [[TEXT, "?"], *(_parts(color, "?") for color in ("red", "green", "blue"))]
        alone = [await bench.ids(vision.request(bench, *one, max_tokens=8)) for one in parts]
        several = await asyncio.gather(
            *(bench.ids(vision.request(bench, *one, max_tokens=8)) for one in [*parts, *parts, *parts])
        )
        assert several == alone * 3

    async def test_damaged_picture_is_refused_and_no_other_request_fails(
        self, bench: Bench, vision: VisionPrompts
    ) -> None:
        request = vision.request(bench, TEXT, picture("red", 300, 300), max_tokens=4)
        (whole,) = request.pictures
        for data in (whole.data[:-40], b"\x89PNG\r\n\x1a\n", b"no picture"):
            damaged = msgspec.structs.replace(whole, data=data, hash=blake2b(data, digest_size=20).hexdigest())
            with pytest.raises(Invalid):
                await bench.run(with_pictures(bench, request, [damaged]))
        assert await bench.ids(vision.request(bench, TEXT, picture("red", 300, 300), max_tokens=4))
        await bench.idle()
