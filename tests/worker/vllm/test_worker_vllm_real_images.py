"""Images in vLLM itself on a CPU (`make test-vllm`), with a tiny Idefics3 that has random weights."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.runtime.config.stages import WorkerConfig
from services.worker.engines.vllm.engine import VllmEngine
from tests.kit.engines import with_vllm
from tests.kit.vision_model import build_vision_model
from tests.kit.waiting import ENGINE_LIMIT_S
from tests.worker.conformance import Bench
from tests.worker.vision import VisionConformance, VisionPrompts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * ENGINE_LIMIT_S),
    pytest.mark.asyncio(loop_scope="module"),
    with_vllm,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_vision_model(tmp_path_factory.mktemp("vision") / "model", "idefics", weights=True)


@pytest.fixture(scope="module")
def vision(model: Path) -> VisionPrompts:
    return VisionPrompts(model, "idefics")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(model: Path) -> AsyncIterator[Bench]:
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
            watchdog_s=ENGINE_LIMIT_S,
            engine_args=arguments,
        )
    )
    info = await asyncio.wait_for(engine.start(), ENGINE_LIMIT_S)
    yield Bench(engine, info, list(range(8, 108)), lambda: None, wait_s=ENGINE_LIMIT_S)
    await engine.stop(20.0)


@pytest_asyncio.fixture(loop_scope="module")
async def bench(started: Bench) -> Bench:
    await started.idle()
    engine: Any = started.engine
    await asyncio.wait_for(engine._llm.reset_prefix_cache(), ENGINE_LIMIT_S)
    return started


class TestVision(VisionConformance):
    pass
