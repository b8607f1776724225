"""Pictures in vLLM itself on a CPU (`make test-vllm`), with a tiny Idefics3 that has random weights.

Its greedy tokens are equal for different pictures, so tests compare log probabilities and counts of cached tokens.
"""

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Struct
from PIL import Image

from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from schemas.frames import PromptPicture, pack_ids
from services.pictures.picture import picture_hash
from services.runtime.config import WorkerConfig
from services.tokenization.block_keys import block_keys, with_pictures
from services.tokenization.picture_processor import PictureProcessor
from services.worker.engine import Delta, EnginePicture, EngineRequest
from services.worker.engines.vllm.engine import VllmEngine
from services.worker.kv.blocks import KvBlockIndex
from tests.conftest import eventually
from tests.vision_model import build_vision_model
from tests.worker.listening import Listener, listen

BLOCK = 32
LIMIT_S = 1800.0
SIZE = (112, 84)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"),
]


def png(color: int, size: tuple[int, int] = SIZE) -> bytes:
    made = BytesIO()
    Image.effect_mandelbrot(size, (-2.0 - color / 100, -1.5, 1.0, 1.5), 100).convert("RGB").save(made, "PNG")
    return made.getvalue()


RED, BLUE, WIDE = png(1), png(60), png(30, (224, 56))
BEFORE, AFTER = "Look at this picture: " * 8, " What is in it, and what is beside it? " * 4


class Prompt(Struct):
    text: str
    ids: list[int]
    pictures: list[EnginePicture]

    def keys(self, salt: str | None = None, output: list[int] | None = None) -> list[int]:
        """The keys that a preprocessor computes."""
        places = [PromptPicture(picture.hash, picture.at, picture.tokens) for picture in self.pictures]
        return list(block_keys(with_pictures(pack_ids([*self.ids, *(output or [])]), places), BLOCK, salt=salt))


class Vision:
    """A started engine."""

    def __init__(self, model: Path) -> None:
        from tokenizers import Tokenizer

        processor = PictureProcessor.load(str(model))
        assert processor is not None
        self.processor = processor
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.engine = VllmEngine(
            WorkerConfig(
                model=str(model),
                slots=8,
                dtype="float32",
                max_model_len=2048,
                watchdog_s=LIMIT_S,
                engine_args={"block_size": BLOCK, "enforce_eager": True, "max_num_batched_tokens": 1024},
            )
        )
        self.index = KvBlockIndex(BLOCK, None)
        self._requests = 0
        self._reading: asyncio.Task[None]

    async def start(self) -> None:
        self.info = await asyncio.wait_for(self.engine.start(), LIMIT_S)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self.engine.kv_events():
            self.index.event(event)

    async def stop(self) -> None:
        await self.engine.stop(20.0)
        await asyncio.wait_for(self._reading, LIMIT_S)

    @property
    def llm(self) -> Any:
        return self.engine._llm

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, *parts: str | bytes) -> Prompt:
        made = Prompt("", [], [])
        for part in parts:
            if isinstance(part, str):
                made.text += part
                made.ids += self.ids(part)
            else:
                made.text += "<image>"
                with Image.open(BytesIO(part)) as image:
                    ids = self.ids(self.processor.expansion(*image.size))
                made.pictures.append(EnginePicture(picture_hash(part, None), len(made.ids), len(ids), part))
                made.ids += ids
        return made

    def request(self, prompt: Prompt, salt: str | None = None, **sampling: Any) -> EngineRequest:
        self._requests += 1
        options: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0, "logprobs": 3, **sampling}
        return EngineRequest(
            f"turn-{self._requests}",
            prompt.ids,
            Sampling(**options),
            [],
            cache_salt=salt,
            pictures=prompt.pictures,
        )

    async def run(self, prompt: Prompt, salt: str | None = None, **sampling: Any) -> list[Delta]:
        async with asyncio.timeout(LIMIT_S):
            return [delta async for delta in listen(self.engine, self.request(prompt, salt, **sampling))]

    async def own(self, prompt: Prompt) -> list[dict[int, float]]:
        """The log probabilities that vLLM itself computes for a text with pictures."""
        names = self.engine._vllm
        sampling = names.sampling(max_tokens=4, temperature=0.0, logprobs=3, ignore_eos=True, output_kind=names.delta)
        images = [Image.open(BytesIO(picture.data)).convert("RGB") for picture in prompt.pictures]
        rows = []
        self._requests += 1
        text = {"prompt": prompt.text, "multi_modal_data": {"image": images}}
        async for output in self.llm.generate(text, sampling, f"own-{self._requests}"):
            assert output.prompt_token_ids in (None, prompt.ids)
            rows += [{token: entry.logprob for token, entry in row.items()} for row in output.outputs[0].logprobs]
        return rows


def output(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.ids]


def cached(deltas: list[Delta]) -> int | None:
    return next((delta.cached for delta in deltas if delta.cached is not None), None)


def in_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def logprobs(deltas: list[Delta]) -> list[dict[int, float]]:
    return [dict(row) for delta in deltas for row in delta.logprobs or ()]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Vision]:
    vision = Vision(build_vision_model(tmp_path_factory.mktemp("vision") / "model", "idefics", weights=True))
    await vision.start()
    yield vision
    await vision.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def vision(started: Vision) -> Vision:
    """The engine, with its prefix cache emptied; the event of that comes with the next request."""
    await eventually(lambda: not started.engine.load().running)
    await started.llm.reset_prefix_cache()
    return started


async def test_the_output_is_that_of_vllm_for_the_same_text_and_pictures(vision: Vision) -> None:
    assert "vision" in vision.info.features
    rows = []
    for parts in ((BEFORE, RED, AFTER), (BEFORE, BLUE, AFTER), (RED, "and", WIDE, AFTER, RED, "?")):
        prompt = vision.prompt(*parts)
        own = await vision.own(prompt)
        await vision.llm.reset_prefix_cache()
        ours = logprobs(await vision.run(prompt))
        assert [row.keys() for row in ours] == [row.keys() for row in own]
        for mine, theirs in zip(ours, own, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)
        rows.append(ours)
    assert rows[0] != rows[1]


async def test_another_picture_shares_only_what_is_before_it(vision: Vision) -> None:
    first, second = (vision.prompt(BEFORE, picture, AFTER) for picture in (RED, BLUE))
    assert [len(first.ids), first.pictures[0].at] == [len(second.ids), second.pictures[0].at]
    await vision.run(first)
    assert cached(await vision.run(second)) == in_blocks(second.pictures[0].at) > 0
    assert cached(await vision.run(first)) == in_blocks(len(first.ids) - 1)
    assert cached(await vision.run(first, "tenant")) == 0


async def test_the_next_turn_computes_only_what_is_new(vision: Vision) -> None:
    prompt, more = vision.prompt(BEFORE, RED, AFTER), vision.prompt(BLUE, AFTER)
    answer = output(await vision.run(prompt, max_tokens=40))
    before, (picture,) = [*prompt.ids, *answer], more.pictures
    new = EnginePicture(picture.hash, len(before), picture.tokens, picture.data)
    following = Prompt("", [*before, *more.ids], [*prompt.pictures, new])
    assert cached(await vision.run(following)) == in_blocks(len(before) - 1) > in_blocks(len(prompt.ids))


@pytest.mark.parametrize("salt", [None, "tenant"])
@pytest.mark.parametrize("parts", [(BEFORE, RED, AFTER, WIDE, AFTER), (RED, RED, AFTER, BLUE)])
async def test_the_index_has_the_keys_of_the_preprocessor(
    vision: Vision, parts: tuple[str | bytes, ...], salt: str | None
) -> None:
    prompt = vision.prompt(*parts)
    answer = output(await vision.run(prompt, salt, max_tokens=40))
    keys = prompt.keys(salt, answer[:-1])
    assert len(keys) > (len(prompt.ids)) // BLOCK
    await eventually(lambda: set(vision.index.keys()) == set(keys))


async def test_a_prompt_that_vllm_expands_differently_fails_alone(vision: Vision) -> None:
    prompt = vision.prompt(BEFORE, RED, AFTER)
    (picture,) = prompt.pictures
    shorter = EnginePicture(picture.hash, picture.at, picture.tokens - 1, picture.data)
    placeholder = vision.ids("<image>")
    moved = EnginePicture(picture.hash, picture.at + 1, picture.tokens, picture.data)
    for wrong in (
        Prompt("", [*prompt.ids[:-1], 9], [shorter]),
        Prompt("", [*placeholder, *prompt.ids], [moved]),
        Prompt("", prompt.ids, [EnginePicture(picture.hash, 0, picture.tokens, WIDE)]),
    ):
        with pytest.raises(EngineFailed, match="differently"):
            await vision.run(wrong)
    damaged = EnginePicture("0" * 40, picture.at, picture.tokens, RED[: len(RED) // 2])
    with pytest.raises(Invalid, match="Could not process image"):
        await vision.run(Prompt("", prompt.ids, [damaged]))
    assert len(output(await vision.run(prompt))) == 4
    assert vision.engine.healthy()


async def test_a_picture_that_vllm_only_believes_to_have_is_sent_again(vision: Vision) -> None:
    prompt = vision.prompt(BEFORE, png(77), AFTER)
    (picture,) = prompt.pictures
    with Image.open(BytesIO(picture.data)) as image:
        vision.llm.renderer.render_cmpl(
            [
                {
                    "prompt_token_ids": vision.ids("<image>"),
                    "multi_modal_data": {"image": [image]},
                    "multi_modal_uuids": {"image": [picture.hash]},
                }
            ]
        )
    assert len(output(await vision.run(prompt))) == 4


async def test_mixed_requests_at_once_have_the_output_of_each_alone(vision: Vision) -> None:
    prompts = [
        vision.prompt(f"Request {n}. ", *((png(80 + n % 7, (56 + 28 * (n % 3), 84)), AFTER) * (n % 4)), "Answer.")
        for n in range(20)
    ]

    async def leave(prompt: Prompt, turns: int) -> None:
        handle = vision.engine.open(vision.request(prompt, max_tokens=900), Listener())
        for _ in range(turns):
            await asyncio.sleep(0.01)
        handle.close()

    together, _ = await asyncio.gather(
        asyncio.gather(*(vision.run(prompt, max_tokens=8) for prompt in prompts)),
        asyncio.gather(*(leave(vision.prompt(png(180 + n), AFTER), n) for n in range(8))),
    )
    for n in range(8):
        assert len(output(await vision.run(vision.prompt(png(180 + n), AFTER)))) == 4
    for prompt, deltas in zip(prompts, together, strict=True):
        await vision.llm.reset_prefix_cache()
        alone = await vision.run(prompt, max_tokens=8)
        for mine, theirs in zip(logprobs(deltas), logprobs(alone), strict=True):
            assert mine == pytest.approx(theirs, abs=1e-3)
