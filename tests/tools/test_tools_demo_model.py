import concurrent.futures
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from turnwire_tools.script.demo_model import MARKUP, SPECIAL, build_demo_model


@pytest.fixture(scope="module")
def model_dir(demo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(demo_dir, tmp_path_factory.mktemp("demo") / "model"))


@pytest.mark.slow
def test_builds_at_the_same_time_agree(tmp_path: Path, model_dir: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(build_demo_model, [tmp_path / "model"] * 2))
    assert (tmp_path / "model/tokenizer.json").read_bytes() == (
        model_dir / "tokenizer.json"
    ).read_bytes()
    assert not list((tmp_path / "model").glob(".build-*"))


def test_transformers_reads_the_same_tokenizer(model_dir: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    ours = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(model_dir)
    text = "<|im_start|>user\nété 日本語 🙂\t`ls -la`<|im_end|>\n<think>\nok\n</think>\n\n<tool_call>\n"
    ids = ours.encode(text, add_special_tokens=False).ids
    assert theirs.encode(text, add_special_tokens=False) == ids
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert len(theirs) == ours.get_vocab_size() == AutoConfig.from_pretrained(model_dir).vocab_size


def test_markup_is_one_token_and_only_control_tokens_are_special(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    for token in (*SPECIAL, *MARKUP):
        assert tokenizer.encode(token, add_special_tokens=False).ids == [
            tokenizer.token_to_id(token)
        ]
    special = {
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    }
    assert special == set(SPECIAL)
