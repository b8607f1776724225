"""The models of the engine's tests."""

from pathlib import Path

import pytest

from tests.model.smollm2 import cached_model
from tests.model.tiny_gguf import write_tiny

pytest.register_assert_rewrite("tests.worker.conformance")


@pytest.fixture(scope="session")
def folder() -> Path:
    """SmolLM2-135M: a GGUF file, and the tokenizer."""
    if (found := cached_model()) is None:
        pytest.skip("the model is not here: make test-model")
    return found


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights."""
    pytest.importorskip("gguf")
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model")
