"""A tokenizer that a child process loaded equals the one that transformers loads here."""

import json
import shutil
import sys
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tokenizers import AddedToken

from services.tokenization import tokenizer_files
from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.tokenization.segments import Cuts
from services.tokenization.tokenizer_files import (
    LoadedTokenizer,
    TokenizerReport,
    describe,
    load_in_child,
    load_tokenizer,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture(autouse=True, scope="module")
def _transformers_is_imported() -> None:
    import_module("transformers")


def of_transformers(model: Path, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, **options)


def test_start_reads_the_tokenizer_in_a_child_process_once(
    demo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start finds its report."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "transformers")
        first = load_tokenizer(str(demo_dir))
        patch.setattr(tokenizer_files, "load_in_child", lambda *_, **__: pytest.fail("a process"))
        second = load_tokenizer(str(demo_dir))
    expected = of_transformers(demo_dir)
    for found in (first, second):
        same(found, expected)


def test_imported_transformers_is_used(demo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_files, "load_in_child", lambda *_, **__: pytest.fail("a process"))
    same(load_tokenizer(str(demo_dir)), of_transformers(demo_dir))


def test_error_of_a_damaged_file_names_the_model(tmp_path: Path, demo_dir: Path) -> None:
    files = ("tokenizer.json", "tokenizer_config.json")
    for number, (file, content) in enumerate(product(files, (b'{"model": 3', b"[1]"))):
        broken = shutil.copytree(demo_dir, tmp_path / f"broken{number}")
        (broken / file).write_bytes(content)
        with pytest.raises((OSError, ValueError), match=str(broken)):
            load_tokenizer(str(broken))
    for broken in (tmp_path / "broken0", tmp_path / "broken2"):
        with pytest.raises(ValueError, match=f"{broken} cannot be loaded"):
            load_in_child(str(broken))


def test_tokenizer_in_python_code_is_refused() -> None:
    with pytest.raises(ValueError, match="Python code"):
        describe(SimpleNamespace(backend_tokenizer=None))


def test_flags_beyond_tokenizer_json_are_kept(demo_dir: Path) -> None:
    bos = AddedToken("<|im_start|>")
    split = of_transformers(demo_dir, split_special_tokens=True, bos_token=bos)
    split.chat_template = {"default": "a", "tool_use": "b"}
    report = msgspec.json.decode(msgspec.json.encode(describe(split)), type=TokenizerReport)
    found = LoadedTokenizer(report)
    same(found, split)
    assert found.special_tokens["bos_token"] == "<|im_start|>"
    ours, theirs = found.backend, split.backend_tokenizer
    assert ours.encode_special_tokens == theirs.encode_special_tokens
    assert bool(Cuts.of(ours)) == bool(Cuts.of(theirs))


def same(found: LoadedTokenizer, expected: "PreTrainedTokenizerBase") -> None:
    names = {name: str(token) for name, token in expected.special_tokens_map.items()}
    assert found.special_tokens == names
    assert found.chat_template == expected.chat_template
    assert found.eos_token_id == expected.eos_token_id
    assert found.get_added_vocab() == expected.get_added_vocab()
    assert len(found) == len(expected)
    tokenizer = PromptTokenizer(found)
    text = "<|im_start|>user\nHi there, 12 é <|im_end|>\n"
    assert tokenizer.encode(text) == expected.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_ids == (expected.eos_token_id,)
    assert tokenizer.terminator(text) == expected.convert_tokens_to_ids("<|im_end|>")
    file = expected.backend_tokenizer.to_str()
    assert json.loads(found.backend.to_str()) == json.loads(file)
