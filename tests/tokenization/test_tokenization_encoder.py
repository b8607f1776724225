"""Encoding by parts, by either encoder, returns the ids of the whole."""

from array import array
from functools import cache
from itertools import chain

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer

from services.tokenization.encoder import Encoder
from services.tokenization.equality import difference
from tests.kit.every import for_each
from tests.kit.examples import examples
from tests.kit.tokenizer_zoo import KINDS, make, texts, whole

CHOICES = ("auto", "tokenizers")


@cache
def made(kind: str, choice: str) -> tuple[Tokenizer, Encoder]:
    tokenizer = make(kind)
    return tokenizer, Encoder.load(tokenizer, choice=choice, cache_bytes=20_000)  # type: ignore[arg-type]


@for_each(KINDS)
@settings(max_examples=examples(60))
@given(text=texts)
def test_ids_are_those_of_the_tokenizer_also_if_text_is_cut_at_a_control_token(
    kind: str, text: str
) -> None:
    for choice in CHOICES:
        tokenizer, encoder = made(kind, choice)
        expected = whole(tokenizer, text)
        assert encoder.encode(text).tolist() == expected
        assert encoder.reference(text).tolist() == expected
        for at in encoder.cuts.find(text)[:3]:
            parts = (encoder.encode(part).tolist() for part in (text[:at], text[at:]))
            assert [*chain.from_iterable(parts)] == expected


def test_half_a_surrogate_pair_is_replaced() -> None:
    for choice in CHOICES:
        tokenizer, encoder = made("qwen", choice)
        expected = whole(tokenizer, "a\ufffdb<s>\ufffd")
        assert encoder.encode("a\ud83db<s>\udfff").tolist() == expected
        assert encoder.reference("a\ud83db<s>\udfff").tolist() == expected


def test_fast_encoder_is_used_where_it_is_equal_unless_the_operator_disables_it() -> None:
    _, encoder = made("qwen", "auto")
    assert (encoder.name, encoder.reason) == ("fastokens", "equal to tokenizers in all trials")
    _, encoder = made("qwen", "tokenizers")
    assert (encoder.name, encoder.reason) == ("tokenizers", "the operator's choice")


def test_tokenizer_that_fastokens_cannot_read_is_served() -> None:
    tokenizer, encoder = made("unigram_nfkc", "auto")
    assert encoder.name == "tokenizers"
    assert encoder.reason.startswith("fastokens ")
    with pytest.raises(ValueError, match="fastokens cannot be the tokenizer"):
        Encoder.load(tokenizer, choice="fastokens")


def test_text_that_fastokens_refuses_is_encoded_by_tokenizers() -> None:
    class Refusing:
        def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
            raise RuntimeError("match limit exceeded")

    tokenizer = make("qwen")
    encoder = Encoder(tokenizer, fast=Refusing())
    assert encoder.encode("<s>a b").tolist() == whole(tokenizer, "<s>a b")
    assert (encoder.failures, encoder.name) == (1, "fastokens")


def test_wrong_ids_disable_fastokens_and_equal_ones_change_nothing() -> None:
    class Wrong:
        def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
            return b"\1\0\0\0", b""

    tokenizer, encoder = made("qwen", "auto")
    assert encoder.find_difference("hello <|im_start|> world") is None
    assert encoder.name == "fastokens"
    wrong = Encoder(tokenizer, fast=Wrong())
    assert wrong.encode("hello world").tolist() == [1]
    reason = "ids by fastokens were not the tokenizer's"
    assert wrong.find_difference("hello world") == wrong.reason == reason
    assert wrong.name == "tokenizers"
    assert wrong.encode("hello world").tolist() == whole(tokenizer, "hello world")


FAULTS = {
    "no NFC": lambda text: text.replace("e\u0301", "e \u0301"),
    "blanks at the end": lambda text: text.rstrip(" "),
    "control tokens as text": lambda text: text.replace("<|im_start|>", "<|im_start |>"),
    "no-break space": lambda text: text.replace("\u00a0", " "),
    "long texts": lambda text: text[:50_000],
    "astral": lambda text: text.replace("\U0001f642", "?"),
}


@cache
def right(text: str) -> "array[int]":
    return array("I", whole(made("qwen", "tokenizers")[0], text))


@for_each(FAULTS)
def test_faulty_encoder_is_detected(fault: str) -> None:
    tokenizer, _ = made("qwen", "tokenizers")
    assert difference(tokenizer, right, right) is None
    assert difference(tokenizer, right, lambda text: right(FAULTS[fault](text))) is not None
