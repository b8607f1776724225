from pathlib import Path

import pytest
from tokenizers import Tokenizer

from turnwire_tools.script.demo_model import MARKUP, SPECIAL


@pytest.mark.slow
def test_transformers_reads_the_same_tokenizer(demo_dir: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    ours = Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(demo_dir)
    text = "<|im_start|>user\nété 日本語 🙂\t`ls -la`<|im_end|>\n<think>\nok\n</think>\n\n<tool_call>\n"
    ids = ours.encode(text, add_special_tokens=False).ids
    assert theirs.encode(text, add_special_tokens=False) == ids
    assert ours.decode(ids, skip_special_tokens=False) == text
    assert len(theirs) == ours.get_vocab_size() == AutoConfig.from_pretrained(demo_dir).vocab_size


def test_markup_is_one_token_and_only_control_tokens_are_special(demo_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
    for token in (*SPECIAL, *MARKUP):
        (token_id,) = tokenizer.encode(token, add_special_tokens=False).ids
        assert token_id == tokenizer.token_to_id(token)
    added = tokenizer.get_added_tokens_decoder().values()
    assert {token.content for token in added if token.special} == set(SPECIAL)
