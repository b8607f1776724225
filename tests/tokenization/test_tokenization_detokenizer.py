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


@given(
    st.sampled_from([BYTES, PIECES]), st.lists(st.integers(0, 420), max_size=30), st.integers(2, 5)
)
def test_any_ids_have_the_same_text_in_any_steps(
    tokenizer: Tokenizer, ids: list[int], size: int
) -> None:
    """With broken characters, and ids beyond the vocabulary."""

    def text(step: int) -> str:
        detokenizer = VOCABULARIES[id(tokenizer)].open(frozenset())
        pieces = [detokenizer.feed(ids[at : at + step]) for at in range(0, len(ids), step)]
        return "".join(pieces) + detokenizer.flush()

    assert text(1) == text(size) == text(len(ids) + 1)
    if tokenizer is BYTES:
        known = [one for one in ids if one < tokenizer.get_vocab_size()]
        assert text(1) == tokenizer.decode(known, skip_special_tokens=False)


def test_special_tokens_that_are_not_markers_are_hidden() -> None:
    vocabulary = Vocabulary(BYTES)
    ids = BYTES.encode("a<tool_call>b<|im_end|>c").ids
    assert vocabulary.open(vocabulary.hidden({"<tool_call>"})).feed(ids) == "a<tool_call>bc"
    assert vocabulary.open(vocabulary.hidden(set())).feed(ids) == "abc"


def test_ids_without_text_are_skipped() -> None:
    vocabulary = Vocabulary(BYTES)
    assert vocabulary.open(frozenset()).feed([10_000_000]) == ""
    assert vocabulary.bytes_of(10_000_000) == b""


def test_incomplete_characters_become_replacements_at_the_end() -> None:
    first = BYTES.encode("船").ids
    broken = Vocabulary(BYTES).open(frozenset())
    tokens = BYTES.get_vocab()
    lone = tokens[pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("船")[0][0][0]]
    assert first
    assert broken.feed([lone]) == ""
    assert broken.flush() == "�"
