"""The tokenizer of a model directory, with which processes decode."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from schemas.errors import Invalid
from services.tokenization import tokenizer_files
from tests.kit.byte_tokenizers import byte_level


def test_a_tokenizer_file_is_read_as_it_is(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    found = tokenizer_files.load_backend(str(tmp_path), trust_remote_code=False)
    assert isinstance(found, Tokenizer)
    assert found.get_vocab_size() == byte_level().get_vocab_size()


def test_a_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(Invalid, match=r"tokenizer\.json cannot be read: "):
        tokenizer_files.load_backend(str(tmp_path), trust_remote_code=False)
