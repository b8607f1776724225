"""Arguments for vLLM and deltas of its outputs: pure."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.conversation import OutputFormat, Sampling
from schemas.errors import EngineFailed
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.worker.engines.vllm.requests import (
    VllmProgress,
    engine_arguments,
    lacking,
    publishes_events,
    sampling_arguments,
)
from tests.kit.engines import request
from tests.kit.every import for_rows
from tests.worker.fake_vllm import AsyncEngineArgs, SamplingParams

FIELDS = SamplingParams.__struct_fields__


def output(
    *ids: int, finish: str | None = None, logprobs: Any = None, cached: int | None = 0
) -> SimpleNamespace:
    out = SimpleNamespace(token_ids=list(ids), finish_reason=finish, logprobs=logprobs)
    return SimpleNamespace(outputs=[out], num_cached_tokens=cached)


def test_settings_become_engine_arguments_and_engine_args_override_them() -> None:
    own: dict[str, Any] = {"dtype": "float16", "data_parallel_size": 2}
    settings = WorkerConfig(model="org/m", slots=8, max_model_len=4096, engine_args=own)
    made = engine_arguments(settings)
    names = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    assert set(made) <= names
    assert (made["model"], made["dtype"]) == ("org/m", "float16")
    assert (made["max_num_seqs"], made["max_model_len"]) == (8, 4096)
    assert made["scheduling_policy"] == "priority"
    for size, blocks in ((None, 65), (64, 17)):
        own = {"block_size": size} if size else {}
        made = engine_arguments(WorkerConfig(model="m", kv_tokens=1024, engine_args=own))
        assert (made["block_size"], made["num_gpu_blocks_override"]) == (size or 16, blocks)
    made = engine_arguments(settings)
    assert not publishes_events(made)
    assert publishes_events(made | {"data_parallel_size": 1})


@for_rows(
    [
        ({}, set()),
        ({"kv_events_config": {"publisher": "zmq"}}, {"kv_events"}),
        ({"data_parallel_size": 2}, {"kv_events"}),
        ({"speculative_config": {"method": "ngram"}}, {"min_p", "logit_bias"}),
        ({"logprobs_mode": "processed_logits"}, {"logprobs", "top_logprobs"}),
        ({"skip_tokenizer_init": True}, {"guided", "grammar", "vision"}),
        ({"scheduling_policy": "fcfs"}, {"priority"}),
        ({"enable_prefix_caching": False}, {"prefix_cache", "kv_events"}),
    ]
)
def test_a_lacking_feature_has_a_reason(given: dict[str, Any], features: set[str]) -> None:
    found = lacking(engine_arguments(WorkerConfig(model="m", engine_args=given)), FIELDS)
    assert set(found) == features | {"grammar", "retention"}


def test_sampling_arguments_are_what_vllm_takes() -> None:
    made = sampling_arguments(
        request(temperature=0.5, top_p=0.9, top_k=-1, seed=-1, min_tokens=2, stop_ids=(5, 7)),
        Sampling(),
    )
    params = SamplingParams(**made)
    assert (params.temperature, params.top_p, params.top_k, params.min_tokens) == (0.5, 0.9, -1, 2)
    assert params.stop_token_ids == [5, 7]
    assert params.ignore_eos
    assert not params.detokenize
    assert params.seed == 2**63 - 1
    SamplingParams(**sampling_arguments(request(seed=2**64 - 1), Sampling()))
    prefill = sampling_arguments(request(max_tokens=0, min_tokens=4), Sampling())
    assert (prefill["max_tokens"], prefill["min_tokens"]) == (1, 1)
    own = Sampling(temperature=0.6, top_k=20)
    assert sampling_arguments(request(), own)["top_k"] == 20
    assert sampling_arguments(request(temperature=0.0), own)["temperature"] == 0.0
    for form in ({"guided": OutputFormat("json_object")}, {"grammar": "start: /x/"}):
        assert not sampling_arguments(request(**form), own)["ignore_eos"], "it ends with a token"


def test_the_stop_token_is_taken_off_with_its_logprobs() -> None:
    def row(token: int) -> dict[int, SimpleNamespace]:
        values = {token: -3.0, 40: -1.0, 41: -2.0}
        return {other: SimpleNamespace(logprob=value) for other, value in values.items()}

    progress = VllmProgress(request(logprobs=1, stop_ids=(5,)))
    started = output(8, logprobs=[row(8)], cached=32)
    started.metrics = SimpleNamespace(queued_ts=10.0, scheduled_ts=10.25)
    first = progress.read(started)
    assert (first.ids, first.cached, first.waited_s, first.finish) == ([8], 32, 0.25, None)
    assert first.logprobs == [[(8, -3.0), (40, -1.0)]]
    last = progress.read(output(9, 5, finish="stop", logprobs=[row(9), row(5)]))
    assert (last.ids, last.cached, last.finish, last.stop_id) == ([9], None, FinishReason.STOP, 5)
    assert last.logprobs == [[(9, -3.0), (40, -1.0)]]
    assert last.stop_logprobs == [(5, -3.0), (40, -1.0)]


def test_an_abort_is_cancelled_and_other_ends_are_failures() -> None:
    assert VllmProgress(request()).read(output(finish="abort")).finish is FinishReason.CANCELLED
    with pytest.raises(EngineFailed, match="repetition"):
        VllmProgress(request()).read(output(9, finish="repetition"))
