"""Small tokenizers with tables of bytes, for tests that decode."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = "Grüße 船は 🌊👩‍🚀 “naïve”\n\tdef f(x): return x ** 2 # Ω≈3½ <tool_call>\n<|im_end|>"
SPECIAL = ["<|im_end|>", "<tool_call>"]


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Metaspace words with byte fallback, as Llama 2's tokenizer."""
    alphabet = sorted(set("▁abcdefghijklmnopqrstuvwxyzGr:()#*<>|_"))
    pieces = ["<unk>", *SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *alphabet]
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
