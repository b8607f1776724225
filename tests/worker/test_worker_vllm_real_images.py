"""Images in vLLM itself on a CPU (`make test-vllm`), with a tiny Idefics3 that has random weights.

Its greedy tokens are equal for different images, so tests compare log probabilities and counts of
cached tokens.
"""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from services.runtime.config import WorkerConfig
from services.worker.engine import EngineDelta
from services.worker.engines.vllm.engine import VllmEngine
from tests.kit.vision_model import build_vision_model, png
from tests.worker import conformance
from tests.worker.conformance import Bench
from tests.worker.vision import TEXT, VisionConformance, VisionPrompts

LIMIT_S = 1800.0
ONE, OTHER, WIDE = png(112, 84, 1), png(112, 84, 2), png(224, 56, 3)
QUESTION = "What is in it, and what is beside it?"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_S),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"
    ),
]


class VllmBench(Bench):
    """The engine, with vLLM's own methods."""

    engine: VllmEngine

    @property
    def llm(self) -> Any:
        return self.engine._llm

    async def clear(self) -> None:
        """Empties the prefix cache."""
        await self.idle()
        await asyncio.wait_for(self.llm.reset_prefix_cache(), LIMIT_S)

    async def own(
        self, text: str, data: Sequence[bytes], ids: Sequence[int]
    ) -> list[dict[int, float]]:
        """The log probabilities that vLLM computes for a text with placeholders, which has these
        ids."""
        names = self.engine._vllm
        sampling = names.sampling(
            max_tokens=8, temperature=0.0, logprobs=3, ignore_eos=True, output_kind=names.delta
        )
        prompt = {
            "prompt": text,
            "multi_modal_data": {"image": [Image.open(BytesIO(one)) for one in data]},
        }
        rows = []
        async for step in self.llm.generate(prompt, sampling, "own"):
            assert step.prompt_token_ids in (None, ids)
            rows += [
                {token: entry.logprob for token, entry in row.items()}
                for row in step.outputs[0].logprobs
            ]
        return rows


def logprobs(deltas: list[EngineDelta]) -> list[dict[int, float]]:
    return [dict(row) for delta in deltas for row in delta.logprobs or ()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_vision_model(tmp_path_factory.mktemp("vision") / "model", "idefics", weights=True)


@pytest.fixture(scope="module")
def vision(model: Path) -> VisionPrompts:
    return VisionPrompts(model, "idefics")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(model: Path) -> AsyncIterator[VllmBench]:
    arguments = {
        "block_size": 32,
        "enforce_eager": True,
        "max_num_batched_tokens": 1024,
        "limit_mm_per_prompt": {"image": 4},
    }
    engine = VllmEngine(
        WorkerConfig(
            model=str(model),
            slots=8,
            dtype="float32",
            max_model_len=2048,
            watchdog_s=LIMIT_S,
            engine_args=arguments,
        )
    )
    info = await asyncio.wait_for(engine.start(), LIMIT_S)
    bench = VllmBench(engine, info, list(range(8, 108)), lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conformance, "WAIT_S", LIMIT_S)
        yield bench
    await engine.stop(20.0)


@pytest_asyncio.fixture(loop_scope="module")
async def bench(started: VllmBench) -> VllmBench:
    await started.clear()
    return started


@pytest.mark.parametrize(
    "parts", [(TEXT, ONE), (TEXT, OTHER), (ONE, "and", WIDE, QUESTION, ONE, "?")]
)
async def test_the_output_is_that_of_vllm_for_the_same_text_and_images(
    bench: VllmBench, vision: VisionPrompts, parts: tuple[str | bytes, ...]
) -> None:
    request = vision.request(bench, *parts, logprobs=3, max_tokens=8)
    text = "".join(part if isinstance(part, str) else "<image>" for part in parts)
    text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    own = await bench.own(
        text, [part for part in parts if isinstance(part, bytes)], request.token_ids
    )
    await bench.clear()
    ours = logprobs(await bench.run(request))
    assert len(ours) == len(own) == 8
    for mine, theirs in zip(ours, own, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


class TestVision(VisionConformance):
    pass
