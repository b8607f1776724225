"""Incremental text equals the text of all ids at once, and never has a broken character."""

from dataclasses import replace

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from services.families.family import VERBATIM
from services.tokenization.detokenizer import Detokenizer, FamilyVocabulary, Vocabulary
from tests.kit.byte_tokenizers import byte_level, sentencepiece
from tests.kit.every import for_each
from tests.kit.examples import chances


def wordpiece() -> Tokenizer:
    """A decoder that depends on neighbours: not a table of bytes."""
    tokenizer = Tokenizer(
        models.WordPiece({"[UNK]": 0, "hel": 1, "##lo": 2, "world": 3}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def test_other_decoders_use_the_library() -> None:
    tokenizer = wordpiece()
    vocabulary = Vocabulary(tokenizer)
    assert not vocabulary.exact
    detokenizer = FamilyVocabulary(vocabulary, VERBATIM).open()
    ids = tokenizer.encode("hello world").ids
    assert "".join(detokenizer.feed([i]) for i in ids) + detokenizer.flush() == "hello world"


BYTES, PIECES = byte_level(), sentencepiece()
VOCABULARIES = {id(t): Vocabulary(t) for t in (BYTES, PIECES)}


def detokenizer_of(tokenizer: Tokenizer, *markers: str) -> Detokenizer:
    """Of a family that sees these control tokens as text."""
    family = replace(VERBATIM, markers=markers)
    return FamilyVocabulary(VOCABULARIES[id(tokenizer)], family).open()


def open_all(tokenizer: Tokenizer) -> Detokenizer:
    """Of a family that sees all control tokens as text."""
    contents = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return detokenizer_of(tokenizer, *contents)


def in_steps(tokenizer: Tokenizer, ids: list[int], size: int) -> str:
    detokenizer = open_all(tokenizer)
    pieces = [detokenizer.feed(ids[at : at + size]) for at in range(0, len(ids), size)]
    return "".join(pieces) + detokenizer.flush()


@for_each([BYTES, PIECES], name=repr)
def test_text_is_the_same_for_any_steps(tokenizer: Tokenizer) -> None:
    """Also with broken characters, and ids beyond the vocabulary."""
    for chance in chances("steps", 200):
        text = "".join(chance.choices([*" \nab.<é船�", "🚢", "👩‍🚀", "e\u0301"], k=12))
        ids = tokenizer.encode("x " + text, add_special_tokens=False).ids
        said = tokenizer.decode(ids, skip_special_tokens=False)
        assert in_steps(tokenizer, ids, chance.randint(1, 3)).lstrip() == said.lstrip()
        ids = [chance.randint(0, 420) for _ in range(chance.randint(0, 30))]
        said = in_steps(tokenizer, ids, 1)
        assert (
            said == in_steps(tokenizer, ids, chance.randint(2, 5)) == in_steps(tokenizer, ids, 99)
        )
        if tokenizer is BYTES:
            known = [one for one in ids if one < tokenizer.get_vocab_size()]
            assert said == tokenizer.decode(known, skip_special_tokens=False)


def test_special_tokens_that_are_not_markers_are_hidden() -> None:
    ids = BYTES.encode("a<tool_call>b<|im_end|>c").ids
    assert detokenizer_of(BYTES, "<tool_call>").feed(ids) == "a<tool_call>bc"
    assert detokenizer_of(BYTES).feed(ids) == "abc"


def test_incomplete_characters_become_replacements_at_the_end() -> None:
    first = BYTES.encode("船").ids
    broken = open_all(BYTES)
    tokens = BYTES.get_vocab()
    lone = tokens[pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("船")[0][0][0]]
    assert first
    assert broken.feed([lone]) == ""
    assert broken.flush() == "�"
