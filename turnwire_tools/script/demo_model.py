"""`turnwire demo-model DIR`: builds the demo model, a directory without weights, in seconds and
without a download.

It is for the `script` engine and the tests; transformers can make a tiny random model from it. The
tokenizer is a byte-level BPE trained on the standard library of the running interpreter, which
every machine has. With `--vision`, images are in the prompt as in Qwen2.5-VL's.
"""

import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from services.cli.registry import Command

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens, as in the Qwen models."""
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Single tokens of the model's output that are not control tokens: detokenizing keeps them."""

VISION = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
"""Control tokens of images, by their names in the configuration."""

_STAMP = ".recipe"
_RECIPE = 1
_VOCAB = 16_384
_CORPUS_BYTES = 4_000_000
_FILES = sorted((Path(__file__).parent / "files").iterdir())
"""Copied as they are; config.json, Qwen3's with the smallest sizes that work, gets the vocabulary's
ids."""
_VISION_FILES = sorted((Path(__file__).parent / "vision_files").iterdir())
"""Files of a model that gets images, Qwen2.5-VL. They replace those with the same name."""
_TEXT_PART = "{{- part.text }}"
_ANY_PART = (
    "{%- if part.type == 'image' %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}"
)
"""What the chat template writes for a part of a user's message or a result."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make(directory: Path, /, *, vision: bool = False) -> int:
    """Makes the demo model's directory, unless it exists, and prints its name.

    Args:
        directory: The directory.
        vision: Make a model that gets images.
    """
    print(build_demo_model(directory, vision=vision))
    return 0


COMMAND = Command(make)


def build_demo_model(path: Path, *, vision: bool = False) -> Path:
    """Make the demo model's directory at `path`, unless it is there already, and return `path`.

    Files: tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json,
    generation_config.json; with `vision` also preprocessor_config.json. Safe to call from several
    processes at once: each file appears whole, and all of them build the same.

    Raises OSError where `path` cannot be written.
    """
    path = Path(path)
    if is_built(path, vision=vision):
        return path
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path, prefix=".build-") as build:
        _write(Path(build), vision)
        for file in Path(build).iterdir():
            os.replace(file, path / file.name)
        (Path(build) / _STAMP).write_text(_fingerprint(vision))
        os.replace(Path(build) / _STAMP, path / _STAMP)
    return path


def is_built(path: Path, *, vision: bool = False) -> bool:
    """Whether the directory contains the model of this version."""
    stamp = path / _STAMP
    return stamp.is_file() and stamp.read_text() == _fingerprint(vision)


def _fingerprint(vision: bool) -> str:
    seed = repr((_RECIPE, _VOCAB, _CORPUS_BYTES, _WORDS, SPECIAL, MARKUP)).encode()
    files = _FILES
    if vision:
        files = [*_FILES, *_VISION_FILES]
        seed += _ANY_PART.encode()
    return hashlib.sha256(seed + b"".join(file.read_bytes() for file in files)).hexdigest()


def _write(build: Path, vision: bool) -> None:
    tokenizer = _train()
    for file in _FILES:
        shutil.copy(file, build)
    ids = {}
    if vision:
        for file in _VISION_FILES:
            shutil.copy(file, build)
        template = build / "chat_template.jinja"
        template.write_text(template.read_text().replace(_TEXT_PART, _ANY_PART, 1))
        tokenizer.add_special_tokens(_control_tokens(VISION.values()))
        ids = {name: tokenizer.token_to_id(token) for name, token in VISION.items()}
    tokenizer.save(str(build / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    pad = tokenizer.token_to_id("<|endoftext|>")
    config = json.loads((build / "config.json").read_bytes())
    vocabulary = {"vocab_size": tokenizer.get_vocab_size()}
    config |= {**vocabulary, "eos_token_id": end, "pad_token_id": pad, **ids}
    if vision:
        config["text_config"] |= vocabulary
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
    tokenizer.add_special_tokens(_control_tokens(SPECIAL))
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    return tokenizer


def _control_tokens(tokens: Iterable[str]) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


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
