"""Facts about decoding in a model's files."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Sampling
from services.tokenization.model_files import (
    ModelFacts,
    facts,
    find_file,
    read_facts,
    with_defaults,
)
from services.tokenization.tokenizer_files import load_tokenizer
from tests.kit.every import for_each, for_rows

GREEDY = Sampling(temperature=0.0)


@for_rows(
    [
        ({"eos_token_id": 2}, {}, [2]),
        ({"eos_token_id": 2}, {"eos_token_id": [5, 7]}, [5, 7]),
        ({"text_config": {"eos_token_id": 9}, "eos_token_id": 2}, {}, [9]),
        ({"eos_token_id": None}, {}, []),
    ]
)
def test_end_tokens_are_read(
    config: dict[str, Any], generation: dict[str, Any], expected: list[int]
) -> None:
    assert facts(config, generation).eos_ids == expected


@for_rows(
    [
        ({"max_position_embeddings": 4096}, {"model_max_length": 100}, 4096),
        ({"text_config": {"max_position_embeddings": 8192}}, None, 8192),
        ({}, {"model_max_length": 2048}, 2048),
        ({}, {"model_max_length": 1e30}, None),
    ]
)
def test_window_is_read(
    config: dict[str, Any], tokenizer: dict[str, Any] | None, expected: int | None
) -> None:
    assert facts(config, {}, tokenizer).window == expected


def test_sampling_is_that_of_generation_config() -> None:
    own = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert facts({}, own).sampling == Sampling(temperature=0.6, top_p=0.95, top_k=20)
    assert facts({}, {"do_sample": True}).sampling == Sampling(temperature=1.0)
    assert facts({}, {"temperature": 0.6}).sampling == GREEDY


def test_client_precedes_the_model() -> None:
    own = Sampling(temperature=0.6, top_p=0.95, top_k=20)
    expected = Sampling(max_tokens=5, temperature=0.6, top_p=0.95, top_k=20)
    assert with_defaults(Sampling(max_tokens=5), own) == expected
    expected = Sampling(temperature=0.0, top_p=0.95, top_k=0)
    assert with_defaults(Sampling(temperature=0.0, top_k=0), own) == expected


@for_each(["/nowhere", "~/nowhere", "a/b/c"])
def test_missing_directory_is_not_a_hub_id(model: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"there is no directory {model}"):
        find_file(model, "config.json")
    with pytest.raises(FileNotFoundError, match=f"there is no directory {model}"):
        load_tokenizer(model)


def test_directory_is_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no config"):
        read_facts(str(tmp_path))
    config = {"vocab_size": 512, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_facts(str(tmp_path)) == ModelFacts([], 64, 512, GREEDY)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    assert read_facts(str(tmp_path)).eos_ids == [1]
    assert find_file(str(tmp_path), "tokenizer.json") is None
