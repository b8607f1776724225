"""Small tokenizers of every kind that models have, trained here, with control tokens of every
sort."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CONTROL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_end", "[INST]", "[/INST]"),
    *("<\uff5cUser\uff5c>", "<unk>"),
)
"""One of them begins another: it is not a cut."""
FLAGGED = (
    AddedToken("<left>", special=True, normalized=False, lstrip=True),
    AddedToken("<right>", special=True, normalized=False, rstrip=True),
    AddedToken("<word>", special=True, normalized=False, single_word=True),
    AddedToken("<Norm>", special=True, normalized=True),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("x<hidden>", special=False, normalized=False),
    AddedToken("<hidden>", special=True, normalized=False),
    AddedToken("  ", special=False, normalized=False),
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog and reads a file in its own directory",
    "def read_file(path: str) -> bytes:\n    with open(path) as file:\n        return file.read()  # 1234",
    "Where's the caf\u00e9? It's 3.14 km \u6f22\u5b57 \uac00\ub098 \U0001f642 away, they've said user assistant system",
] * 20


def _bpe(
    tokenizer: Tokenizer, *, alphabet: Sequence[str] = (), max_token_length: int | None = None
) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<unk>"],
        show_progress=False,
        initial_alphabet=list(alphabet),
        max_token_length=max_token_length,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level(
    *, prefix_space: bool = False, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return _bpe(tokenizer, alphabet=pre_tokenizers.ByteLevel.alphabet())


def qwen() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.normalizer = normalizers.NFC()
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _bpe(tokenizer, alphabet=pre_tokenizers.ByteLevel.alphabet())


def metaspace(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _bpe(tokenizer)


def llama() -> Tokenizer:
    """SentencePiece BPE as converted from Llama 2: a dummy prefix and blanks by normalizer, no
    pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    return _bpe(tokenizer, max_token_length=12)


def unigram(normalizer: normalizers.Normalizer) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_level_prefix_space": lambda: byte_level(prefix_space=True),
    "byte_level_nfkc_lower": lambda: byte_level(
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "qwen": qwen,
    "metaspace_first": lambda: metaspace("first"),
    "metaspace_always": lambda: metaspace("always"),
    "llama": llama,
    "unigram_nfkc": lambda: unigram(normalizers.NFKC()),
    "wordpiece": wordpiece,
}


def make(kind: str) -> Tokenizer:
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in CONTROL]
    )
    tokenizer.add_special_tokens([token for token in FLAGGED if token.special])
    tokenizer.add_tokens([token for token in FLAGGED if not token.special])
    return tokenizer


PIECES = [
    *CONTROL,
    *(token.content for token in FLAGGED),
    *("<|im_end|>\n", "<|im_start|>user\n", "|>", "<|", "<", ">", " ", "  ", "\n", "\n\n", "\t"),
    *("a", "the", "The", "don't", "12", "cafe\u0301", "\u0301", "\u6f22", "\U0001f642", "\u2581"),
    *("\u00a0", "user", "read_file", "x", "hidden>", "x<hidden", "s>"),
]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=30).map("".join)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids
