"""Markers are found in the tokens of any text, however a tokenizer splits them."""

import random
from functools import cache

from tokenizers import Tokenizer

from services.tokenization.detokenizer import Vocabulary
from services.tokenization.marker_tokens import OTHER, marker_tokens
from tests.kit.every import for_each
from tests.kit.tokenizer_zoo import make

MARKERS = [
    *("<think>", "</think>", "Here is my answer:", "<|im_start|>", "\u25c1/think\u25b7"),
    *("<tool>\n{", "}", "[INST]say["),
]
PIECES = [
    *(*MARKERS, "<", ">", "</", "think", "a", ".", " ", "\n", "\n\n", "Here is", "12"),
    *("x < y", "caf\u00e9", "\u25c1", ":"),
]


@cache
def loaded(kind: str) -> tuple[Tokenizer, dict[int, str]]:
    tokenizer = make(kind)
    added = {
        str(token.content): index for index, token in tokenizer.get_added_tokens_decoder().items()
    }
    vocabulary = Vocabulary(tokenizer)
    texts = [
        vocabulary.bytes_of(token).decode("latin-1") for token in range(tokenizer.get_vocab_size())
    ]
    markers = [as_bytes(marker) for marker in MARKERS]
    added_bytes = {as_bytes(text): index for text, index in added.items()}
    tokens = marker_tokens(markers, texts, added_bytes, signs=".:")
    return tokenizer, {token: text for text, ids in tokens.items() for token in ids}


def as_bytes(text: str) -> str:
    return text.encode().decode("latin-1")


@for_each(["byte_level", "qwen", "llama"])
def test_markers_are_found_where_the_text_has_them(kind: str) -> None:
    tokenizer, texts = loaded(kind)
    vocabulary, chance = Vocabulary(tokenizer), random.Random(kind)
    for _ in range(150):
        ids = tokenizer.encode("".join(chance.choices(PIECES, k=12)), add_special_tokens=False).ids
        whole = b"".join(map(vocabulary.bytes_of, ids)).decode("latin-1")
        found = "".join(texts.get(token, OTHER) for token in ids)
        for marker in map(as_bytes, MARKERS):
            assert found.count(marker) == whole.count(marker), (marker, whole)
        assert found.endswith(("\n", OTHER + "\n")) >= (whole.endswith("\n") and not whole.strip())
