"""Fixtures for every package: the demo model, loaded once, and each published chat template that is installed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.ledger.published import of_trl
from services.cli.demo.model import build_demo_model
from services.preprocessor.model import ModelSetup
from services.runtime.config import PreprocessorConfig
from services.templates.chat_template import ChatTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture(scope="session")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_demo_model(tmp_path_factory.mktemp("models") / "turnwire-demo")


def build_random_model(path: Path, *, hidden_size: int = 64, layers: int = 2, window: int = 8192) -> Path:
    """The demo's tokenizer and template with random weights (Qwen3)."""
    import torch
    import transformers

    build_demo_model(path)
    generation = (path / "generation_config.json").read_bytes()
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(transformers.AutoTokenizer.from_pretrained(path)),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=window,
        tie_word_embeddings=False,
    )
    model: Any = transformers.Qwen3ForCausalLM(config)
    model.to(torch.float32).save_pretrained(path)
    (path / "generation_config.json").write_bytes(generation)
    return path


@pytest.fixture(scope="session")
def demo_tokenizer(demo_dir: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer  # 1.5 s, only for the tests that need it

    tokenizer = AutoTokenizer.from_pretrained(demo_dir)
    tokenizer.bos_token = "<|im_start|>"  # some templates print one
    return tokenizer


@pytest.fixture(scope="session")
def setup(demo_dir: Path) -> ModelSetup:
    return ModelSetup.load(PreprocessorConfig(model=str(demo_dir)))


@pytest.fixture(params=of_trl() or [pytest.param("", marks=pytest.mark.skip("trl is not installed"))])
def real_template(request: pytest.FixtureRequest, demo_tokenizer: "PreTrainedTokenizerBase") -> ChatTemplate:
    return ChatTemplate(demo_tokenizer, of_trl()[request.param].read_text())
