"""What the tests of TensorRT-LLM share: a model's directory and an engine."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.worker.engines.trtllm.engine import TrtllmEngine
from tests.kit.engines import EMPTY_MODEL
from tests.worker.trtllm.serving import started


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Configuration files are all that the adapter reads itself."""
    (tmp_path / "config.json").write_text(EMPTY_MODEL)
    return tmp_path


@pytest.fixture
async def engine(fake_trtllm: Any, model: Path) -> AsyncIterator[TrtllmEngine]:
    async with started(model) as (engine, _):
        yield engine
