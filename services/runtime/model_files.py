"""What a model directory says about decoding: end tokens, context window, vocabulary, default sampling."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Sampling

_WINDOW_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
_NO_LIMIT = 10**9
"""transformers writes 1e30 for `model_max_length` where a tokenizer knows no limit."""


class ModelFacts(Struct, frozen=True):
    """As far as the files tell."""

    eos_ids: list[int]
    window: int | None
    """Context window in tokens."""
    vocab_size: int | None
    """Rows of the embedding: every id is below it."""
    sampling: Sampling
    """generation_config's own way to choose tokens; `temperature` 0 where it says greedy."""


def facts(
    config: Mapping[str, Any], generation: Mapping[str, Any], tokenizer: Mapping[str, Any] | None = None
) -> ModelFacts:
    """The facts in config.json, generation_config.json and tokenizer_config.json."""
    text = config.get("text_config") or config
    eos = generation.get("eos_token_id", text.get("eos_token_id", config.get("eos_token_id")))
    window = next((text[key] for key in _WINDOW_KEYS if text.get(key)), (tokenizer or {}).get("model_max_length"))
    return ModelFacts(
        eos_ids=[eos] if isinstance(eos, int) else list(eos or []),
        window=int(window) if window and window < _NO_LIMIT else None,
        vocab_size=text.get("vocab_size"),
        sampling=_sampling(generation),
    )


def with_defaults(sampling: Sampling, own: Sampling) -> Sampling:
    """`sampling` with the model's own values where the client gave none.

    A client that gives a temperature of 0 gets greedy decoding, whatever else the model would have.
    """
    fields = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: getattr(sampling, name) for name in fields}
    return replace(sampling, **{name: getattr(own, name) if value is None else value for name, value in given.items()})


def read_facts(model: str) -> ModelFacts:
    """The facts of a model directory, or of a hub id's files (fetched if they are not in the cache).

    Raises OSError or ValueError where config.json cannot be found or read.
    """
    config = read_json(model, "config.json")
    if config is None:
        raise FileNotFoundError(f"{model} has no config.json")
    return facts(config, read_json(model, "generation_config.json") or {}, read_json(model, "tokenizer_config.json"))


def read_json(model: str, name: str) -> dict[str, Any] | None:
    """A JSON file of the model; None if it has none of that name."""
    path = find_file(model, name)
    if path is None:
        return None
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def find_file(model: str, name: str) -> Path | None:
    """Where a file of the model lies on this machine, after a download if `model` is a hub id."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return path if (path := folder / name).is_file() else None
    from transformers.utils.hub import cached_file  # 1 s to import, and not needed for a directory

    found = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


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
