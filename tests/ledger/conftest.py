"""Models of published templates, each made once, and the demo model as `m`."""

from pathlib import Path

import pytest

from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.stages import PreprocessorConfig
from sessions.models import LedgerSetup
from tests.kit.ledger_turns import Session
from tests.ledger.walks import Models


@pytest.fixture(scope="session")
def setup(demo_dir: Path) -> ModelSetup:
    return LedgerSetup.load(PreprocessorConfig(model=str(demo_dir), served_model_name="m"))


@pytest.fixture
def session(setup: ModelSetup) -> Session:
    return Session(setup)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A model for each template, made at its first use."""
    return Models(tmp_path_factory.mktemp("models"))
