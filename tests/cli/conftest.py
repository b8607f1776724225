"""A home of its own: a `turnwire up` that a developer runs at the same time is not found by the
tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.tokenization.tokenizer_files import LoadedTokenizer


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)


@pytest.fixture
def quick_tokenizer(demo_tokenizer: LoadedTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models have the demo's tokenizer: to read one takes another process and seconds."""
    monkeypatch.setattr(
        "services.preprocessor.model.model_setup.load_tokenizer", lambda *_, **__: demo_tokenizer
    )


@pytest.fixture
def nothing_is_masked() -> Iterator[None]:
    """A command gets no help from the user's umask."""
    before = os.umask(0)
    yield
    os.umask(before)
