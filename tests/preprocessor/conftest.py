"""The demo model, loaded once, and each published template that is there."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from services.cli.demo_model import build_demo_model
from services.preprocessor.model import ModelSetup
from services.preprocessor.template import ChatTemplate
from services.runtime.config import PreprocessorConfig
from tests.preprocessor.real_templates import REAL_TEMPLATES


@pytest.fixture(scope="session")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_demo_model(tmp_path_factory.mktemp("models") / "turnwire-demo")


@pytest.fixture(scope="session")
def demo_tokenizer(demo_dir: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(demo_dir)
    tokenizer.bos_token = "<|im_start|>"  # some templates print one
    return tokenizer


@pytest.fixture(scope="session")
def setup(demo_dir: Path) -> ModelSetup:
    return ModelSetup.load(PreprocessorConfig(model=str(demo_dir)))


@pytest.fixture(params=REAL_TEMPLATES or [pytest.param("", marks=pytest.mark.skip("trl is not installed"))])
def real_template(request: pytest.FixtureRequest, demo_tokenizer: PreTrainedTokenizerBase) -> ChatTemplate:
    return ChatTemplate(demo_tokenizer, REAL_TEMPLATES[request.param].read_text())
