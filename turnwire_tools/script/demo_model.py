"""`turnwire demo-model DIR`: builds the demo model, a directory without weights, in seconds and
without a download.

It is for the `script` engine and the tests; transformers can make a tiny random model from it. The
tokenizer is a byte-level BPE trained on the standard library of the running interpreter, which
every machine has.
"""

import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from services.cli.registry import Command

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens, as in the Qwen models."""
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Single tokens of the model's output that are not control tokens: detokenizing keeps them."""

_STAMP = ".recipe"
_RECIPE = 1
_VOCAB = 16_384
_CORPUS_BYTES = 4_000_000
_FILES = sorted((Path(__file__).parent / "files").iterdir())
"""Copied as they are; config.json, Qwen3's with the smallest sizes that work, gets the vocabulary's
ids."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make(directory: Path, /) -> int:
    """Makes the demo model's directory, unless it exists, and prints its name.

    Args:
        directory: The directory.
    """
    print(build_demo_model(directory))
    return 0


COMMAND = Command(make)


def build_demo_model(path: Path) -> Path:
    """Make the demo model's directory at `path`, unless it is there already, and return `path`.

    Files: tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json,
    generation_config.json. Safe to call from several processes at once: each file appears whole,
    and all of them build the same.

    Raises OSError where `path` cannot be written.
    """
    path = Path(path)
    if is_built(path):
        return path
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path, prefix=".build-") as build:
        _write(Path(build))
        for file in Path(build).iterdir():
            os.replace(file, path / file.name)
        (Path(build) / _STAMP).write_text(_fingerprint())
        os.replace(Path(build) / _STAMP, path / _STAMP)
    return path


def is_built(path: Path) -> bool:
    """Whether the directory contains the model of this version."""
    stamp = path / _STAMP
    return stamp.is_file() and stamp.read_text() == _fingerprint()


def _fingerprint() -> str:
    seed = repr((_RECIPE, _VOCAB, _CORPUS_BYTES, _WORDS, SPECIAL, MARKUP)).encode()
    return hashlib.sha256(seed + b"".join(file.read_bytes() for file in _FILES)).hexdigest()


def _write(build: Path) -> None:
    tokenizer = _train()
    tokenizer.save(str(build / "tokenizer.json"))
    for file in _FILES:
        shutil.copy(file, build)
    end = tokenizer.token_to_id("<|im_end|>")
    pad = tokenizer.token_to_id("<|endoftext|>")
    config = json.loads((build / "config.json").read_bytes())
    config |= {"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": end, "pad_token_id": pad}
    generation = {"eos_token_id": [end, pad], "pad_token_id": pad}
    for name, document in (("config.json", config), ("generation_config.json", generation)):
        (build / name).write_text(json.dumps(document, indent=2) + "\n")


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB - len(SPECIAL) - len(MARKUP),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    return tokenizer


def _corpus() -> Iterator[str]:
    """Prose (the language reference in `pydoc`), then code; all of it is part of Python."""
    library = Path(sysconfig.get_paths()["stdlib"])
    left = _CORPUS_BYTES
    for source in (*sorted(library.glob("pydoc_data/*.py")), *sorted(library.glob("*.py"))):
        text = source.read_text(encoding="utf-8", errors="replace")[:left]
        yield text
        left -= len(text)
        if not left:
            return
