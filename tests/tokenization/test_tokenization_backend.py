"""The tokenizer of a model directory, with which processes decode."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from schemas.errors import Invalid
from services.tokenization import tokenizer_files
from tests.kit.byte_tokenizers import byte_level
from tests.kit.every import for_each


def test_a_tokenizer_file_is_read_as_it_is(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    found = tokenizer_files.load_backend(str(tmp_path), trust_remote_code=False)
    assert isinstance(found, Tokenizer)
    assert found.get_vocab_size() == byte_level().get_vocab_size()


def test_a_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(Invalid, match=r"tokenizer\.json cannot be read: "):
        tokenizer_files.load_backend(str(tmp_path), trust_remote_code=False)


@for_each([True, False])
def test_remote_code_is_trusted_if_configured(
    trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []

    def load(model: str, *, trust_remote_code: bool) -> SimpleNamespace:
        asked.append((model, trust_remote_code))
        return SimpleNamespace(backend_tokenizer=byte_level())

    monkeypatch.setattr(tokenizer_files, "load_tokenizer", load)
    tokenizer_files.load_backend("acme/model", trust_remote_code=trusted)
    assert asked == [("acme/model", trusted)]


def test_a_tokenizer_in_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "load_tokenizer", lambda *_, **__: SimpleNamespace())
    with pytest.raises(Invalid, match=r"no tokenizer\.json"):
        tokenizer_files.load_backend("acme/model", trust_remote_code=True)
