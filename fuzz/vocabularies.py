"""Small tokenizers, one of each kind that the detokenizer distinguishes."""

from functools import cache
from typing import Final

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL: Final = ["<|im_end|>", "<tool_call>", "<|é|>"]
_TEXT: Final = (
    "Grüße 船は 🌊👩‍🚀 “naïve”\n\tdef f(x): return x ** 2 # Ω≈3½ <tool_call>\n<|im_end|> \ufffd"
)


@cache
def byte_level() -> Tokenizer:
    """BPE over bytes: GPT-2, Llama 3, Qwen, DeepSeek."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL)
    tokenizer.train_from_iterator([_TEXT] * 3, trainer)
    return tokenizer


@cache
def sentencepiece() -> Tokenizer:
    """Pieces with byte fallback: Llama 2, Mistral v3, Gemma."""
    letters = sorted(set("▁abcdefghijklmnopqrstuvwxyzGrüß船:()#*<>|_\n"))
    pieces = ["<unk>", *SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *letters]
    tokenizer = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


@cache
def wordpiece() -> Tokenizer:
    """A decoder that depends on the neighbours of a token, not on a table of bytes."""
    words = ["[UNK]", *SPECIAL, "hel", "##lo", "world", "##wide", ".", "'", "s", "##é", "船"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
