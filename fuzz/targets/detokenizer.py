"""Incremental detokenization: every split of the ids gives the same text, without a broken
character.

Layout: tokenizer, seed of the steps; then ids, two bytes each.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Final

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from services.tokenization.detokenizer import Vocabulary

SPECIAL: Final = ["<|im_end|>", "<tool_call>", "<|é|>"]
MARKERS: Final = frozenset({"<tool_call>"})
BROKEN: Final = "\N{REPLACEMENT CHARACTER}"
_TEXTS: Final = (
    "Grüße 船は 🌊👩‍🚀 “naïve”\n\tdef f(x): return x ** 2 # Ω≈3½ \ufffd",
    "a<tool_call>b<|im_end|>c",
    "hello world's worldwide . hello",
    "\r\n  indented\ttext  ",
)


def byte_level() -> Tokenizer:
    """BPE over bytes: GPT-2, Llama 3, Qwen, DeepSeek."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL)
    tokenizer.train_from_iterator(_TEXTS[:2] * 3, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Pieces with byte fallback: Llama 2, Mistral v3, Gemma."""
    letters = sorted(set("▁abcdefghijklmnopqrstuvwxyzGrüß船:()#*<>|_\n"))
    pieces = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(numbers, [], byte_fallback=True, fuse_unk=True))
    blanks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(blanks)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def wordpiece() -> Tokenizer:
    """A decoder that depends on the neighbours of a token, not on a table of bytes."""
    words = ["[UNK]", *SPECIAL, "hel", "##lo", "world", "##wide", ".", "'", "s", "##é", "船"]
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


@cache
def vocabularies() -> tuple[tuple[Tokenizer, Vocabulary], ...]:
    """Each kind of tokenizer, with its `Vocabulary`."""
    made = (byte_level(), sentencepiece(), wordpiece())
    return tuple((tokenizer, Vocabulary(tokenizer)) for tokenizer in made)


def one(data: bytes) -> None:
    """Raises AssertionError where the text depends on the steps or differs from the library's."""
    kind, seed = data[:2].ljust(2, b"\0")
    tokenizer, vocabulary = vocabularies()[kind % 3]
    hidden = vocabulary.hidden(MARKERS)
    ids = [int.from_bytes(data[at : at + 2], "little") for at in range(2, len(data) - 1, 2)]
    at_once = _text(vocabulary, [ids])
    each = _text(vocabulary, [[i] for i in ids])
    steps = _text(vocabulary, _steps(ids, Random(seed)))
    assert at_once == each == steps, f"{at_once!r} / {each!r} / {steps!r} of {ids}"

    size = tokenizer.get_vocab_size(with_added_tokens=True)
    shown = [i for i in ids if i not in hidden and i < size]
    theirs = str(tokenizer.decode(shown, skip_special_tokens=False))
    broken = BROKEN in theirs or BROKEN in at_once
    if not broken or kind % 3 == 0:
        # sentencepiece's decoder strips one blank at the start; after a prompt there is none to
        # strip.
        right = (theirs, f" {theirs}") if kind % 3 == 1 else (theirs,)
        assert at_once in right, f"{at_once!r}, the library: {theirs!r}, of {shown}"


def mutate(data: bytes, chance: Random) -> bytes:
    """Other ids, near `data`."""
    ids = bytearray(data)
    if not ids or chance.random() < 0.2:
        ids[:1] = bytes([chance.randrange(3)])
    for _ in range(chance.choice((1, 2, 8))):
        at = 2 * chance.randrange(1, len(ids) // 2 + 2)
        ids[at : at + chance.choice((0, 0, 2, 4))] = chance.randrange(420).to_bytes(2, "little")
    return bytes(ids)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Texts, encoded by each tokenizer."""
    for kind, (tokenizer, _) in enumerate(vocabularies()):
        for number, text in enumerate(_TEXTS):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            packed = b"".join(i.to_bytes(2, "little") for i in ids)
            yield f"{kind}-{number}", bytes([kind, number]) + packed


def _text(vocabulary: Vocabulary, steps: Iterable[Sequence[int]]) -> str:
    """The text; a character is emitted only when it is complete."""
    detokenizer = vocabulary.open(vocabulary.hidden(MARKERS))
    shown = "".join(detokenizer.feed(step) for step in steps) + detokenizer.flush()
    assert detokenizer.flush() == ""
    shown.encode()
    return shown


def _steps(ids: list[int], chance: Random) -> Iterator[list[int]]:
    at = 0
    while at < len(ids):
        size = chance.randint(1, 4)
        yield ids[at : at + size]
        at += size
