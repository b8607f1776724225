"""Reads a model's files for decoding: end tokens, context window, vocabulary size, default
sampling."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Sampling

_WINDOW_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_NO_LIMIT = 10**9
"""transformers writes 1e30 for `model_max_length` where a tokenizer has no limit."""


class ModelFacts(Struct, frozen=True):
    """A model's properties by its files."""

    eos_ids: list[int]
    window: int | None
    """Context window in tokens."""
    vocab_size: int | None
    """Rows of the embedding: every id is smaller."""
    sampling: Sampling
    """The defaults of generation_config.json; `temperature` 0 for greedy decoding."""


def facts(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer: Mapping[str, Any] | None = None,
) -> ModelFacts:
    """The facts in config.json, generation_config.json and tokenizer_config.json."""
    text = config.get("text_config") or config
    eos = generation.get("eos_token_id", text.get("eos_token_id", config.get("eos_token_id")))
    window = next(
        (text[key] for key in _WINDOW_KEYS if text.get(key)),
        (tokenizer or {}).get("model_max_length"),
    )
    return ModelFacts(
        eos_ids=[eos] if isinstance(eos, int) else list(eos or []),
        window=int(window) if window and window < _NO_LIMIT else None,
        vocab_size=text.get("vocab_size"),
        sampling=_sampling(generation),
    )


def with_defaults(sampling: Sampling, defaults: Sampling) -> Sampling:
    """`sampling` with the model's values where the client set none. A temperature of 0 remains
    greedy decoding."""
    fields = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    missing = [name for name in fields if getattr(sampling, name) is None]
    return replace(sampling, **{name: getattr(defaults, name) for name in missing})


def read_facts(model: str) -> ModelFacts:
    """The facts of a model directory, or of a hub id's files (fetched if they are not in the
    cache).

    Raises OSError or ValueError where config.json cannot be found or read.
    """
    config = read_json(model, "config.json")
    if config is None:
        raise FileNotFoundError(f"{model} has no config.json")
    generation = read_json(model, "generation_config.json") or {}
    tokenizer = read_json(model, "tokenizer_config.json")
    try:
        return msgspec.convert(
            msgspec.to_builtins(facts(config, generation, tokenizer)), ModelFacts
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"config.json or generation_config.json of {model} has a wrong value: {error}"
        ) from error


def read_response_template(model: str, file: str | None = None) -> str | None:
    """The JSON text with the description of the model's output: of `file`, or else of the model's
    own tokenizer_config.json, if that has one.

    Raises OSError where the file cannot be read.
    """
    if file is not None:
        return Path(file).expanduser().read_text(encoding="utf-8")
    template = (read_json(model, "tokenizer_config.json") or {}).get("response_template")
    return None if template is None else json.dumps({"response_template": template})


def read_json(model: str, name: str) -> dict[str, Any] | None:
    """The object in a JSON file of the model; None if it has none of that name. Raises ValueError
    if it is damaged."""
    path = find_file(model, name)
    if path is None:
        return None
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} is not a JSON object")
    return document


def find_file(model: str, name: str) -> Path | None:
    """The path of a model's file, which is downloaded if `model` is a hub id; None: the model has
    no such file.

    Raises OSError where the directory or the hub cannot be read.
    """
    folder = local_folder(model)
    if folder is not None:
        path = folder / name
        return path if path.is_file() else None
    from transformers.utils.hub import cached_file  # takes 1 s, and a directory does not need it

    cached = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    return Path(cached) if cached else None


def local_folder(model: str) -> Path | None:
    """The directory of a model; None for a name that may be a hub id. Raises FileNotFoundError for
    any other name."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise FileNotFoundError(f"there is no directory {model}")
    return None


def _sampling(generation: Mapping[str, Any]) -> Sampling:
    if not generation.get("do_sample", False):
        return Sampling(temperature=0.0)
    return Sampling(
        temperature=generation.get("temperature", 1.0),
        top_p=generation.get("top_p"),
        top_k=generation.get("top_k"),
        min_p=generation.get("min_p"),
        repetition_penalty=generation.get("repetition_penalty"),
    )
