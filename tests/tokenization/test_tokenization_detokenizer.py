"""Incremental text equals the text of all ids at once, and never has a broken character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from services.tokenization.detokenizer import Vocabulary
from tests.kit.byte_tokenizers import byte_level, sentencepiece


def wordpiece() -> Tokenizer:
    """A decoder that depends on neighbours: not a table of bytes."""
    tokenizer = Tokenizer(
        models.WordPiece({"[UNK]": 0, "hel": 1, "##lo": 2, "world": 3}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_byte_tables_are_recognized(make: object) -> None:
    assert Vocabulary(make()).exact  # type: ignore[operator]


def test_other_decoders_use_the_library() -> None:
    tokenizer = wordpiece()
    vocabulary = Vocabulary(tokenizer)
    assert not vocabulary.exact
    detokenizer = vocabulary.open(frozenset())
    ids = tokenizer.encode("hello world").ids
    assert "".join(detokenizer.feed([i]) for i in ids) + detokenizer.flush() == "hello world"


BYTES, PIECES = byte_level(), sentencepiece()
VOCABULARIES = {id(t): Vocabulary(t) for t in (BYTES, PIECES)}


@given(st.sampled_from([BYTES, PIECES]), st.text(), st.data())
def test_text_is_the_same_for_any_steps(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    try:
        ids = tokenizer.encode("x " + text, add_special_tokens=False).ids
    except UnicodeEncodeError:
        return
    detokenizer = VOCABULARIES[id(tokenizer)].open(frozenset())
    out, at = "", 0
    while at < len(ids):
        size = data.draw(st.integers(1, 3))
        piece = detokenizer.feed(ids[at : at + size])
        assert "�" not in piece or "�" in text
        out += piece
        at += size
    out += detokenizer.flush()
    assert out.removeprefix(" ") == tokenizer.decode(ids, skip_special_tokens=False).removeprefix(
        " "
    )


def test_special_tokens_that_are_not_markers_are_hidden() -> None:
    vocabulary = Vocabulary(BYTES)
    ids = BYTES.encode("a<tool_call>b<|im_end|>c").ids
    assert vocabulary.open(vocabulary.hidden({"<tool_call>"})).feed(ids) == "a<tool_call>bc"
    assert vocabulary.open(vocabulary.hidden(set())).feed(ids) == "abc"


def test_ids_without_text_are_skipped() -> None:
    vocabulary = Vocabulary(BYTES)
    assert vocabulary.open(frozenset()).feed([10_000_000]) == ""


def test_incomplete_characters_become_replacements_at_the_end() -> None:
    first = BYTES.encode("船").ids
    broken = Vocabulary(BYTES).open(frozenset())
    tokens = BYTES.get_vocab()
    lone = tokens[pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("船")[0][0][0]]
    assert first
    assert broken.feed([lone]) == ""
    assert broken.flush() == "�"
