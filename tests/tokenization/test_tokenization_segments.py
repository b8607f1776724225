"""The ids of a text are those of its segments, for tokenizers of every kind."""

import concurrent.futures
from array import array
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.tokenization.segments import Cuts, SegmentCache
from tests.kit.every import for_each
from tests.kit.examples import examples
from tests.kit.tokenizer_zoo import CONTROL, KINDS, byte_level, make, texts, whole

made = cache(make)


@for_each(KINDS)
@settings(max_examples=examples(60))
@given(text=texts)
def test_segments_have_the_ids_of_the_whole(kind: str, text: str) -> None:
    tokenizer = made(kind)
    cuts = Cuts.of(tokenizer)
    assert cuts.tokens
    segments = cuts.split(text)
    assert "".join(segments) == text
    assert [token for segment in segments for token in whole(tokenizer, segment)] == whole(
        tokenizer, text
    )


@for_each(KINDS)
def test_cuts_are_the_special_tokens(kind: str) -> None:
    plain = set(CONTROL) - {"<|im_end"}
    assert set(Cuts.of(made(kind)).tokens) == plain | {"<right>"}


def test_tokens_that_strip_blanks_or_are_text_or_random_merges_are_not_cuts() -> None:
    tokenizer = made("byte_level")
    assert whole(tokenizer, "a <left>") != whole(tokenizer, "a ") + whole(tokenizer, "<left>")
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<s>"])
    assert Cuts.of(tokenizer).tokens == ("<s>", "<unk>")
    tokenizer.encode_special_tokens = True
    assert not Cuts.of(tokenizer)
    tokenizer = byte_level()
    tokenizer.model.dropout = 0.5
    assert not Cuts.of(tokenizer)
    assert Cuts.of(tokenizer).split("<unk>a") == ["<unk>a"]


def test_overlapping_tokens_are_not_cuts() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<a><b>", "<b><c>", "<d>", "<d><e>", "<f>", "<g>", "x<g>y"])
    assert set(Cuts.of(tokenizer).tokens) == {"<unk>", "<a><b>", "<d><e>", "<f>", "x<g>y"}
    tokenizer.add_special_tokens(["<<"])  # in `<<f>` it is the first that is found
    assert Cuts.of(tokenizer).tokens == ("x<g>y",)


class Counting:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.encoded: list[str] = []

    def __call__(self, texts: list[str]) -> list["array[int]"]:
        self.encoded += texts
        return [array("I", whole(self.tokenizer, text)) for text in texts]


def test_segment_is_encoded_once() -> None:
    tokenizer = made("qwen")
    encode = Counting(tokenizer)
    cache = SegmentCache(encode, Cuts.of(tokenizer), 1 << 20)
    first, second = "<s>one<|im_start|>two<|im_start|>two", "<|im_start|>two<s>one<s>three"
    assert cache.encode(first).tolist() == whole(tokenizer, first)
    assert cache.encode(second).tolist() == whole(tokenizer, second)
    assert encode.encoded == ["<s>one", "<|im_start|>two", "<s>three"]
    assert cache.encode("").tolist() == []


@settings(max_examples=examples(60))
@given(st.lists(texts, min_size=1, max_size=20), st.integers(0, 4000))
def test_evictions_change_nothing(session: list[str], room: int) -> None:
    tokenizer = made("metaspace_first")
    cache = SegmentCache(Counting(tokenizer), Cuts.of(tokenizer), room)
    for text in session + session:
        assert cache.encode(text).tolist() == whole(tokenizer, text)
        assert cache.size <= room


def test_threads_share_a_cache() -> None:
    tokenizer = made("qwen")
    cache = SegmentCache(Counting(tokenizer), Cuts.of(tokenizer), 6000)
    texts = [
        "".join(f"<|im_start|>{(n * k) % 13} bottles<|im_end|>\n" for k in range(20))
        for n in range(40)
    ]
    expected = [whole(tokenizer, text) for text in texts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: cache.encode(text).tolist(), texts * 20))
    assert found == expected * 20
