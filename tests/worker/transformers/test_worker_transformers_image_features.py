"""Images in the transformers engine, compared with the model's own forward pass."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from schemas.errors import Invalid
from services.images.image_data import read_pixels
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta, EngineImage, EngineRequest
from services.worker.engines.transformers.engine import TransformersEngine
from services.worker.engines.transformers.loader import explain
from tests.kit import engines
from tests.kit.engines import ids_of, run, torch, transformers, update, versions_of
from tests.kit.listening import listen
from tests.kit.vision_model import build_vision_model, png, reference_processor
from tests.worker.vision import VisionPrompts

pytestmark = [engines.with_torch, pytest.mark.asyncio(loop_scope="module")]
PAGE = 32
WORDS = ["read", "the", "file", "and", "run", "a", "test", "of", "this", "code"]
Prompt: TypeAlias = tuple[list[int], list[EngineImage]]


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
    prompts: VisionPrompts

    def inputs(self, ids: list[int], images: Sequence[EngineImage]) -> dict[str, Any]:
        """The arguments of the model's forward pass."""
        found = {"input_ids": torch.tensor([ids])}
        if images:
            text = self.processor.image_token * len(images)
            pixels = [read_pixels(each.data) for each in images]
            made = self.processor(text=[text], images=[pixels], return_tensors="pt")
            found = {**made, **found}
            if "mm_token_type_ids" in found:
                found["mm_token_type_ids"] = (
                    found["input_ids"] == self.own.config.image_token_id
                ).int()
        return found | {"attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}

    def generate(self, ids: list[int], images: Sequence[EngineImage], tokens: int) -> list[int]:
        own = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None}
        out = self.own.generate(**self.inputs(ids, images), **own)
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


@pytest.fixture(scope="module", params=["qwen", "idefics"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = build_vision_model(tmp_path_factory.mktemp("vision"), request.param, weights=True)
    own = transformers.AutoModelForImageTextToText.from_pretrained(path).eval()
    processor = reference_processor(path, request.param)
    return Model(path, own, processor, VisionPrompts(path, request.param))


def config(path: Path) -> WorkerConfig:
    return WorkerConfig(model=str(path), slots=8, kv_tokens=8192, engine_args={"threads": 1})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Model) -> AsyncIterator[TransformersEngine]:
    made = TransformersEngine(config(model.path))
    info = await made.start()
    assert "vision" in info.features
    assert "vision" not in info.lacking
    yield made
    await made.stop(5.0)


def request(turn: str, prompt: Prompt, tokens: int = 12) -> EngineRequest:
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.0, "logprobs": 0}
    return engines.request(turn, prompt[0], images=prompt[1], **options)


def logprobs_of(deltas: list[EngineDelta]) -> list[float]:
    return [row[0][1] for delta in deltas for row in delta.logprobs or []]


def check(model: Model, prompt: Prompt, deltas: list[EngineDelta]) -> None:
    """The tokens are those of `generate`, the log probabilities those of the model's forward
    pass."""
    ids = ids_of(deltas)
    assert ids == model.generate(*prompt, len(ids))
    assert logprobs_of(deltas) == pytest.approx(model.logprobs(*prompt, ids), abs=1e-3)


async def test_tokens_and_log_probabilities_are_those_of_the_library(
    model: Model, engine: TransformersEngine
) -> None:
    for parts in ((image(1),), (words(3, 20), image(1), "and", image(2, 320, 200), "differ")):
        prompt = model.prompts.prompt(*parts)
        check(model, prompt, await run(engine, request("a", prompt)))


async def test_another_image_shares_no_block_from_its_first_token_on(
    model: Model, engine: TransformersEngine
) -> None:
    one, other = (
        model.prompts.prompt(words(1, 100), image(seed), words(2, 100)) for seed in (1, 2)
    )
    assert one[0] == other[0]
    first, second = await run(engine, request("a", one)), await run(engine, request("b", other))
    assert logprobs_of(first) != pytest.approx(logprobs_of(second), abs=1e-3)
    assert engines.cached_of(second) == other[1][0].at // PAGE * PAGE
    check(model, other, second)
    again = await run(engine, request("c", one))
    assert engines.cached_of(again) == (len(one[0]) - 1) // PAGE * PAGE
    assert ids_of(again) == ids_of(first)


async def test_image_that_does_not_fit_its_prompt_fails_alone(
    model: Model, engine: TransformersEngine
) -> None:
    ids, (own,) = model.prompts.prompt("Look: ", image(3), " What is it?")
    wrong = [
        EngineImage(own.hash, own.at, own.tokens - 4, own.data),
        EngineImage("ab" * 20, own.at, own.tokens, own.data[:2000]),
        EngineImage("cd" * 20, own.at, own.tokens, image(1, 100, 100)),
    ]
    good, *bad = await asyncio.gather(
        run(engine, request("good", (ids, [own]))),
        *(run(engine, request(f"bad-{n}", (ids, [one]))) for n, one in enumerate(wrong)),
        return_exceptions=True,
    )
    assert [type(error) for error in bad] == [Invalid] * 3
    assert isinstance(good, list)
    check(model, (ids, [own]), good)


async def test_images_of_open_turns_are_read_again_with_new_weights(
    model: Model, tmp_path: Path
) -> None:
    prompt = model.prompts.prompt(words(3, 20), image(1), "and", image(2, 320, 200), "differ")
    own = transformers.AutoModelForImageTextToText.from_pretrained(model.path).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in own.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    own.save_pretrained(tmp_path)

    engine = TransformersEngine(config(model.path))
    await engine.start()
    stream = listen(engine, request("open", prompt, tokens=200))
    deltas = [await anext(stream)]
    await update(engine, tmp_path, 1)
    deltas += [delta async for delta in stream]
    after = await run(engine, request("after", prompt))
    await engine.stop(5.0)

    check(replace(model, own=own), prompt, after)
    ids = ids_of(deltas)
    versions = [each.logprobs(*prompt, ids) for each in (model, replace(model, own=own))]
    spans = versions_of(deltas)
    assert set(spans) == {0, 1}
    expected = [versions[version][at] for at, version in enumerate(spans)]
    assert logprobs_of(deltas) == pytest.approx(expected, abs=1e-3)


async def test_model_that_cannot_show_images_decodes_text_alone(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processor is damaged, or its images need more than rows: as in Gemma 3, in which the
    tokens of an image see each other both ways."""
    damaged = tmp_path / "model"
    shutil.copytree(model.path, damaged)
    (damaged / "preprocessor_config.json").write_text("{")
    monkeypatch.setattr(
        "services.worker.engines.transformers.image_features._put_rows", lambda *_: None
    )
    for path, why in ((damaged, "processor cannot be loaded"), (model.path, "in several layers")):
        engine = TransformersEngine(config(path))
        info = await engine.start()
        assert why in info.lacking["vision"]
        assert len(ids_of(await run(engine, request("a", ([300, 301], []))))) == 12
        await engine.stop(5.0)
    assert "vision" in explain(config(model.path)).features
