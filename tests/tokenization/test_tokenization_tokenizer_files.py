"""A tokenizer that a child process loaded equals the one that transformers loads here."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken

from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.tokenization.segments import Cuts
from services.tokenization.tokenizer_files import (
    FileTokenizer,
    TokenizerReport,
    describe,
    load_in_child,
    load_tokenizer,
    special_tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture(autouse=True, scope="module")
def _transformers_is_imported() -> None:
    import_module("transformers")


def of_transformers(model: Path, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, **options)


def test_child_process_reports_the_loaded_tokenizer(demo_dir: Path) -> None:
    same(FileTokenizer(load_in_child(str(demo_dir))), of_transformers(demo_dir))


def test_imported_transformers_is_used(demo_dir: Path) -> None:
    from transformers import PreTrainedTokenizerBase

    assert isinstance(load_tokenizer(str(demo_dir)), PreTrainedTokenizerBase)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b'{"model": 3', b"[1]"])
def test_error_of_a_damaged_file_names_the_model(
    file: str, content: bytes, tmp_path: Path, demo_dir: Path
) -> None:
    broken = shutil.copytree(demo_dir, tmp_path / "broken")
    (broken / file).write_bytes(content)
    with pytest.raises((OSError, ValueError), match=str(broken)):
        load_tokenizer(str(broken))
    with pytest.raises(ValueError, match=f"{broken} cannot be loaded"):
        load_in_child(str(broken))


def test_tokenizer_in_python_code_is_refused() -> None:
    with pytest.raises(ValueError, match="Python code"):
        describe(SimpleNamespace(backend_tokenizer=None))


def test_flags_beyond_tokenizer_json_are_kept(demo_dir: Path) -> None:
    split = of_transformers(
        demo_dir, split_special_tokens=True, bos_token=AddedToken("<|im_start|>")
    )
    split.chat_template = {"default": "a", "tool_use": "b"}
    found = FileTokenizer(json_round_trip(describe(split)))
    same(found, split)
    assert found.special_tokens_map["bos_token"] == "<|im_start|>"
    assert (
        found.backend_tokenizer.encode_special_tokens
        == split.backend_tokenizer.encode_special_tokens
    )
    assert bool(Cuts.of(found.backend_tokenizer)) == bool(Cuts.of(split.backend_tokenizer))


def same(found: FileTokenizer, expected: "PreTrainedTokenizerBase") -> None:
    assert special_tokens(found) == special_tokens(expected)
    assert found.chat_template == expected.chat_template
    assert found.eos_token_id == expected.eos_token_id
    assert found.get_added_vocab() == expected.get_added_vocab()
    assert len(found) == len(expected)
    ours, theirs = PromptTokenizer(found), PromptTokenizer(expected)
    text = "<|im_start|>user\nHi there, 12 é <|im_end|>\n"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == text
    assert (ours.eos_ids, ours.vocab_size) == (theirs.eos_ids, theirs.vocab_size)
    assert ours.terminator(text) == theirs.terminator(text) is not None
    assert json.loads(found.backend_tokenizer.to_str()) == json.loads(
        expected.backend_tokenizer.to_str()
    )


def json_round_trip(description: TokenizerReport) -> TokenizerReport:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(description), type=TokenizerReport)
