"""Fixtures for every package: the demo model, loaded once, and each published chat template that is
installed."""

import fcntl
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.stages import PreprocessorConfig
from services.templates.chat_template import ChatTemplate
from services.tokenization.tokenizer_files import LoadedTokenizer, TokenizerReport
from sessions.published import of_trl
from tests.kit.vision_model import Scheme, build_vision_model
from turnwire_tools.script.demo_model import build_demo_model


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """A directory that one test process of this run builds and all of them read."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    made, part = root / name, root / f"{name}.part"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(part, ignore_errors=True)
            build(part)
            part.rename(made)
    return made


@pytest.fixture(scope="session")
def demo_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer, template and configuration; no weights."""
    return built_once(tmp_path_factory, "turnwire-demo", build_demo_model)


@pytest.fixture(scope="session", params=["qwen", "idefics"])
def vision_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision model without weights, named by its scheme."""
    scheme: Scheme = request.param
    return built_once(tmp_path_factory, scheme, lambda path: build_vision_model(path, scheme))


@pytest.fixture(scope="session")
def vision_setup(vision_dir: Path) -> ModelSetup:
    return ModelSetup.load(PreprocessorConfig(model=str(vision_dir)))


@pytest.fixture(scope="session")
def demo_tokenizer(demo_dir: Path) -> LoadedTokenizer:
    """Read without transformers, which takes seconds to import."""
    end = "<|im_end|>"
    report = TokenizerReport(
        backend=(demo_dir / "tokenizer.json").read_text(),
        special_tokens={"bos_token": "<|im_start|>", "eos_token": end},
        chat_template=(demo_dir / "chat_template.jinja").read_text(),
    )
    tokenizer = LoadedTokenizer(report)
    tokenizer.eos_token_id = tokenizer.get_added_vocab()[end]
    return tokenizer


@pytest.fixture(scope="session")
def setup(demo_dir: Path) -> ModelSetup:
    return ModelSetup.load(PreprocessorConfig(model=str(demo_dir)))


@pytest.fixture(scope="session")
def compiled_template(demo_tokenizer: LoadedTokenizer) -> Callable[[str], ChatTemplate]:
    """A published template, compiled at its first use."""
    return cache(lambda name: ChatTemplate(demo_tokenizer, of_trl()[name].read_text()))
