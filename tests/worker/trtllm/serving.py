"""TensorRT-LLM engines over a fake of the package."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineInfo
from services.worker.engines.trtllm.engine import TrtllmEngine
from tests.worker.fake_tensorrt_llm import VERSIONS

BOTH = pytest.mark.parametrize("fake_trtllm", [VERSIONS[0], VERSIONS[-1]], indirect=True)
"""The oldest and the newest: their statistics and their death come in different ways."""
NEW = pytest.mark.parametrize("fake_trtllm", [VERSIONS[-1]], indirect=True)
"""It reports its death and refuses long prompts."""
OLD = pytest.mark.parametrize("fake_trtllm", [VERSIONS[0]], indirect=True)
"""It does neither."""


@contextlib.asynccontextmanager
async def started(model: Path, **options: Any) -> AsyncIterator[tuple[TrtllmEngine, EngineInfo]]:
    """A running engine with these settings, and what it says of itself."""
    defaults = {"slots": 4, "max_model_len": 4096, "watchdog_s": 30.0}
    engine = TrtllmEngine(WorkerConfig(model=str(model), **{**defaults, **options}))
    yield engine, await engine.start()
    await engine.stop(5.0)
