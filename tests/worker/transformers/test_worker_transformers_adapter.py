"""What stands between the contract and continuous batching, without either running."""

from functools import partial
from typing import Any

import pytest

from schemas.conversation import Sampling
from schemas.errors import Invalid
from schemas.events import FinishReason
from services.worker.engine import EngineDelta
from services.worker.engines.transformers.adapter import (
    PAGE_TOKENS,
    EngineArgs,
    TransformersProgress,
    batching_options,
    lacking,
    parse_args,
    recurrent_layers,
    row_arguments,
)
from tests.kit.engines import request
from tests.kit.every import Cases, for_rows

FIELDS_523 = {"page_size", "num_blocks", "max_batch_tokens", "auto_switch_to_flash"}
FIELDS_523 |= {"scheduler_type", "max_queue_size"}
FIELDS_517 = (FIELDS_523 - {"page_size", "auto_switch_to_flash"}) | {"block_size"}


def progress(**changes: Any) -> TransformersProgress:
    return TransformersProgress(request(**{"stop_ids": (5, 7), **changes}))


def finish(turn: TransformersProgress, generated: list[int], logprobs: Any = ()) -> EngineDelta:
    turn.finished = True
    return turn.read(generated, logprobs, None)


def test_each_output_has_all_tokens_and_each_delta_only_the_new_ones() -> None:
    turn = progress()
    assert turn.read([10], [], 96) == EngineDelta([10], cached=96)
    assert turn.read([10, 11, 12], [], None) == EngineDelta([11, 12])
    assert finish(turn, [10, 11, 12, 5]) == EngineDelta([], finish=FinishReason.STOP, stop_id=5)
    assert turn.taken == 3
    assert finish(progress(), [10, 11]) == EngineDelta([10, 11], finish=FinishReason.LENGTH)
    unstopped = finish(progress(stop_ids=()), [10, 5])
    assert unstopped == EngineDelta([10, 5], finish=FinishReason.LENGTH)
    assert finish(progress(max_tokens=0), [5]) == EngineDelta([], finish=FinishReason.LENGTH)


@for_rows(
    [
        ({}, {"pick": -1}),
        ({"temperature": 0.7, "top_k": 1}, {"pick": -1}),
        ({"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"temperature": 0.7}),
        ({"temperature": 0.7, "top_k": 20}, {"temperature": 0.7, "top_k": 20}),
        ({"temperature": 0.7, "seed": 0}, {"temperature": 0.7, "pick": 1}),
        ({"temperature": 0.7, "seed": -1}, {"temperature": 0.7, "pick": 2**31 - 1}),
    ]
)
def test_a_row_has_the_arguments_of_its_sampling(
    sampling: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert row_arguments(Sampling(**sampling)) == expected


def options(*, on_cpu: bool = True, fields: Any = FIELDS_523, **own: Any) -> dict[str, Any]:
    args = EngineArgs(batching=own)
    return batching_options(args, slots=8, kv_tokens=1000, on_cpu=on_cpu, fields=fields)


def test_a_cpu_never_leaves_sizes_to_the_library_and_5_17_has_another_name() -> None:
    found = options()
    assert found["page_size"] == PAGE_TOKENS
    assert found["num_blocks"] * PAGE_TOKENS >= 1000 + PAGE_TOKENS
    assert found["max_batch_tokens"] == 512
    assert found["auto_switch_to_flash"] is False
    assert "max_batch_tokens" not in options(on_cpu=False)
    old = options(fields=FIELDS_517)
    assert old["block_size"] == PAGE_TOKENS
    assert not {"page_size", "auto_switch_to_flash"} & set(old)


def test_the_operator_has_the_last_word_within_what_works(cases: Cases) -> None:
    assert options(max_batch_tokens=64)["max_batch_tokens"] == 64
    assert parse_args(None) == EngineArgs()
    for call, message in (
        (partial(options, pagesize=1), "has no pagesize"),
        (partial(options, max_queue_size=5), "max_queue_size"),
        (partial(parse_args, {"modes": 1}), "unknown field `modes`"),
    ):
        with cases.case(message), pytest.raises(Invalid, match=message):
            call()


@for_rows(
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"text_config": {"layer_types": ["full_attention", "conv"]}}, "conv"),
        ({"hybrid_override_pattern": "MEM*E"}, "mamba"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, None),
        ({}, None),
    ]
)
def test_layers_without_a_kv_cache_are_found(config: dict[str, Any], kind: str | None) -> None:
    assert recurrent_layers(config) == kind


def test_a_lacking_feature_has_a_reason() -> None:
    args = parse_args(None)
    least = lacking(args, graphs=False, guided=True, no_vision=None)
    assert set(least) == {"kv_events", "priority", "salt"}
    assert "use_cuda_graph" in lacking(args, graphs=True, guided=True, no_vision=None)["logprobs"]
    assert "llguidance" in lacking(args, graphs=False, guided=False, no_vision=None)["guided"]
    assert lacking(args, graphs=False, guided=True, no_vision="text only")["vision"] == "text only"
    greedy = lacking(parse_args({"mode": "greedy"}), graphs=True, guided=False, no_vision=None)
    assert greedy["seed"] == greedy["top_logprobs"] == "engine_args.mode is greedy"
