"""Images in the transformers engine, compared with the model's own forward pass."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import Invalid
from schemas.frames import unpack_ids
from services.images.image import image_hash, read_pixels
from services.runtime.config import WorkerConfig
from services.tokenization.image_processor import ImageProcessor
from services.worker.engine import EngineDelta, EngineImage, EngineRequest
from services.worker.engines.transformers.engine import TransformersEngine
from services.worker.engines.transformers.loader import explain
from tests.kit import engines
from tests.kit.engines import ids_of, run, torch, transformers
from tests.kit.listening import listen
from tests.kit.vision_model import build_vision_model, png, reference_processor

pytestmark = engines.with_torch
PAGE = 32
WORDS = ["read", "the", "file", "and", "run", "a", "test", "of", "this", "code"]
SCHEMES = ("qwen", "idefics")
Part = str | bytes
"""Text, or an image's data."""


def image(seed: int, width: int = 150, height: int = 100) -> bytes:
    return png(width, height, seed)


def words(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


@dataclass
class Model:
    """A vision model in the library's own hands, and its prompts."""

    path: Path
    own: Any
    processor: Any
    expansions: ImageProcessor

    def prompt(self, *parts: Part) -> tuple[list[int], list[EngineImage]]:
        """The user's message of these parts, in ids of the library's processor."""
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in parts
        ]
        text = self.processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        data = [part for part in parts if isinstance(part, bytes)]
        ids = (
            self._process(text, data)["input_ids"][0].tolist()
            if data
            else self.processor.tokenizer(text).input_ids
        )
        images, end = list[EngineImage](), 0
        for each in data:
            expansion = list(unpack_ids(self.expansions.expansion(*read_pixels(each).size).ids))
            at = next(n for n in range(end, len(ids)) if ids[n : n + len(expansion)] == expansion)
            end = at + len(expansion)
            images.append(EngineImage(image_hash(each, None), at, len(expansion), each))
        return ids, images

    def inputs(self, ids: list[int], images: Sequence[EngineImage]) -> dict[str, Any]:
        """The arguments of the model's forward pass."""
        found = {"input_ids": torch.tensor([ids])}
        if images:
            text = self.processor.image_token * len(images)
            found = self._process(text, [each.data for each in images]) | found
            if "mm_token_type_ids" in found:
                found["mm_token_type_ids"] = (
                    found["input_ids"] == self.own.config.image_token_id
                ).int()
        return found | {"attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}

    def _process(self, text: str, data: Sequence[bytes]) -> dict[str, Any]:
        return dict(
            self.processor(
                text=[text], images=[[read_pixels(each) for each in data]], return_tensors="pt"
            )
        )

    def generate(self, ids: list[int], images: Sequence[EngineImage], tokens: int) -> list[int]:
        inputs = self.inputs(ids, images)
        out = self.own.generate(**inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
        found: list[int] = out[0, len(ids) :].tolist()
        return found

    def logprobs(
        self, ids: list[int], images: Sequence[EngineImage], output: list[int]
    ) -> list[float]:
        with torch.no_grad():
            logits = self.own(**self.inputs([*ids, *output], images)).logits[0, len(ids) - 1 : -1]
        chosen = logits.log_softmax(dim=-1).gather(1, torch.tensor(output)[:, None])
        found: list[float] = chosen[:, 0].tolist()
        return found


@pytest.fixture(scope="module", params=SCHEMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = build_vision_model(tmp_path_factory.mktemp("vision"), request.param, weights=True)
    processor = ImageProcessor.load(str(path))
    assert processor is not None
    own = transformers.AutoModelForImageTextToText.from_pretrained(path).eval()
    return Model(path, own, reference_processor(path, request.param), processor)


def config(path: Path, **changes: Any) -> WorkerConfig:
    args = {"threads": 1, **changes.pop("engine_args", {})}
    return WorkerConfig(
        model=str(path), **{"slots": 8, "kv_tokens": 8192, **changes}, engine_args=args
    )


@pytest.fixture
async def engine(model: Model) -> AsyncIterator[TransformersEngine]:
    made = TransformersEngine(config(model.path))
    info = await made.start()
    assert "vision" in info.features
    assert "vision" not in info.lacking
    yield made
    await made.stop(5.0)


def request(
    turn: str, prompt: tuple[list[int], list[EngineImage]], *, tokens: int = 12, **sampling: Any
) -> EngineRequest:
    options = {"max_tokens": tokens, "temperature": 0.0, "logprobs": 0, **sampling}
    return engines.request(turn, prompt[0], images=prompt[1], **options)


def logprobs_of(deltas: list[EngineDelta]) -> list[float]:
    return [row[0][1] for delta in deltas for row in delta.logprobs or []]


def check(
    model: Model, prompt: tuple[list[int], list[EngineImage]], deltas: list[EngineDelta]
) -> None:
    """The tokens are those of `generate`, the log probabilities those of the model's forward
    pass."""
    ids = ids_of(deltas)
    assert ids == model.generate(*prompt, len(ids))
    assert logprobs_of(deltas) == pytest.approx(model.logprobs(*prompt, ids), abs=1e-3)


@pytest.mark.parametrize(
    "parts",
    [
        (image(1),),
        ("Look: ", image(1), " What is it?"),
        (image(1), "and", image(2, 320, 200), "differ"),
        (words(3, 400), image(3), words(4, 300), image(3), words(5, 50)),
    ],
    ids=["alone", "between", "two", "long"],
)
async def test_tokens_and_log_probabilities_are_those_of_the_library(
    model: Model, engine: TransformersEngine, parts: tuple[Part, ...]
) -> None:
    prompt = model.prompt(*parts)
    check(model, prompt, await run(engine, request("a", prompt)))


async def test_another_image_shares_no_block_from_its_first_token_on(
    model: Model, engine: TransformersEngine
) -> None:
    one, other = (model.prompt(words(1, 100), image(seed), words(2, 100)) for seed in (1, 2))
    assert one[0] == other[0]
    first, second = await run(engine, request("a", one)), await run(engine, request("b", other))
    assert logprobs_of(first) != pytest.approx(logprobs_of(second), abs=1e-3)
    assert engines.cached_of(second) == other[1][0].at // PAGE * PAGE
    check(model, other, second)
    again = await run(engine, request("c", one))
    assert engines.cached_of(again) == (len(one[0]) - 1) // PAGE * PAGE
    assert ids_of(again) == ids_of(first)


async def test_penalties_bias_and_alternatives_see_ordinary_ids(
    model: Model, engine: TransformersEngine
) -> None:
    prompt = model.prompt("Look: ", image(1), " What is it?")
    expected = model.own.generate(
        **model.inputs(*prompt),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=None,
        repetition_penalty=1.3,
    )[0, len(prompt[0]) :].tolist()
    deltas = await run(engine, request("a", prompt, repetition_penalty=1.3, logprobs=2))
    assert ids_of(deltas) == expected
    deltas = await run(
        engine, request("b", prompt, logit_bias={300: 100.0}, presence_penalty=0.5, tokens=3)
    )
    assert ids_of(deltas) == [300, 300, 300]


@pytest.mark.parametrize("fault", ["tokens", "data", "size"])
async def test_image_that_does_not_fit_its_prompt_fails_alone(
    model: Model, engine: TransformersEngine, fault: str
) -> None:
    ids, (own,) = model.prompt("Look: ", image(1), " What is it?")
    wrong = {
        "tokens": EngineImage(own.hash, own.at, own.tokens - 4, own.data),
        "data": EngineImage("ab" * 20, own.at, own.tokens, own.data[:2000]),
        "size": EngineImage("cd" * 20, own.at, own.tokens, image(1, 100, 100)),
    }[fault]
    bad, good = await asyncio.gather(
        run(engine, request("bad", (ids, [wrong]))),
        run(engine, request("good", (ids, [own]))),
        return_exceptions=True,
    )
    assert isinstance(bad, Invalid)
    assert isinstance(good, list)
    check(model, (ids, [own]), good)


@pytest.mark.slow
async def test_random_mixes_equal_the_library(model: Model) -> None:
    """Conversations of one to three turns with zero to three images of few, in a cache that is
    often full."""
    arguments = {"batching": {"max_batch_tokens": 96}}  # most images are computed in parts
    engine = TransformersEngine(config(model.path, kv_tokens=3072, slots=4, engine_args=arguments))
    await engine.start()
    rng = random.Random(7)

    async def converse(seed: int) -> None:
        own = random.Random(seed)
        ids, images = list[int](), list[EngineImage]()
        for turn in range(own.randint(1, 3)):
            parts: list[Part] = [words(own.randrange(4), own.choice((1, 30, 90)))]
            parts += [
                image(own.randrange(4), *own.choice(((60, 60), (150, 100))))
                for _ in range(own.randint(0, 2))
            ]
            own.shuffle(parts)
            after, more = model.prompt(*parts)
            images += [
                EngineImage(each.hash, each.at + len(ids), each.tokens, each.data) for each in more
            ]
            ids = [*ids, *after]
            if own.random() < 0.2:
                stream = listen(engine, request(f"{seed}-{turn}-gone", (ids, images), tokens=50))
                await anext(stream)
                await stream.aclose()
            deltas = await run(
                engine, request(f"{seed}-{turn}", (ids, images), tokens=own.choice((1, 8, 40)))
            )
            check(model, (ids, images), deltas)
            ids += ids_of(deltas)

    for _ in range(10):
        await asyncio.gather(*(converse(rng.randrange(1000)) for _ in range(3)))
    await engine.stop(5.0)


async def test_model_whose_images_need_more_than_rows_decodes_text_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Gemma 3, in which the tokens of an image see each other both ways."""
    monkeypatch.setattr("services.worker.engines.transformers.images._put_rows", lambda *_: None)
    engine = TransformersEngine(config(model.path))
    info = await engine.start()
    assert "in several layers" in info.lacking["vision"]
    assert len(ids_of(await run(engine, request("a", ([300, 301], []))))) == 12
    await engine.stop(5.0)


async def test_model_without_usable_processor_decodes_text_alone(tmp_path: Path) -> None:
    path = build_vision_model(tmp_path / "m", "idefics", weights=True)
    (path / "preprocessor_config.json").write_text("{")
    engine = TransformersEngine(config(path))
    info = await engine.start()
    assert "processor cannot be loaded" in info.lacking["vision"]
    assert len(ids_of(await run(engine, request("a", ([300, 301], []))))) == 12
    await engine.stop(5.0)


def test_features_are_explained_without_a_start(tmp_path: Path, tiny_model: Path) -> None:
    assert "vision" in explain(config(build_vision_model(tmp_path / "m", "qwen"))).features
    assert explain(config(tiny_model)).lacking["vision"] == "the model sees no images"


def test_image_that_was_forgotten_gets_a_new_number(model: Model, monkeypatch: Any) -> None:
    """Blocks with its old number may still be in the library's cache."""
    from services.worker.engines.transformers import images as engine_images

    monkeypatch.setattr(engine_images, "_NUMBERS", 2)
    made = engine_images.Images(model.own, model.expansions)
    numbers = list[int]()
    for seed in (1, 2, 1, 3, 2, 1):
        asked = request("a", model.prompt(image(seed)))
        ids = made.prompt(asked, [made.look(each) for each in asked.images]).ids
        numbers += {each for each in ids if each >= model.own.get_input_embeddings().num_embeddings}
    first = numbers[0]
    assert numbers == [first, first + 1, first, first + 2, first + 3, first + 4]
