"""Fixtures for every package: the demo model, loaded once, and each published chat template that is installed."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.cli.demo.model import build_demo_model
from services.preprocessor.model import ModelSetup
from services.runtime.config import PreprocessorConfig
from services.templates.chat_template import ChatTemplate
from tests.templates.real_templates import REAL_TEMPLATES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture(scope="session")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_demo_model(tmp_path_factory.mktemp("models") / "turnwire-demo")


@pytest.fixture(scope="session")
def demo_tokenizer(demo_dir: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer  # 1.5 s, only for the tests that need it

    tokenizer = AutoTokenizer.from_pretrained(demo_dir)
    tokenizer.bos_token = "<|im_start|>"  # some templates print one
    return tokenizer


@pytest.fixture(scope="session")
def setup(demo_dir: Path) -> ModelSetup:
    return ModelSetup.load(PreprocessorConfig(model=str(demo_dir)))


@pytest.fixture(params=REAL_TEMPLATES or [pytest.param("", marks=pytest.mark.skip("trl is not installed"))])
def real_template(request: pytest.FixtureRequest, demo_tokenizer: "PreTrainedTokenizerBase") -> ChatTemplate:
    return ChatTemplate(demo_tokenizer, REAL_TEMPLATES[request.param].read_text())
