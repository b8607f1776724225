"""What a release of TensorRT-LLM takes, arguments for it, and deltas from its outputs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDelta
from services.worker.engines.trtllm.releases import known_release
from services.worker.engines.trtllm.requests import (
    TrtllmProgress,
    generate_arguments,
    lacking,
    llm_arguments,
    sampling_arguments,
)
from tests.kit.engines import request
from tests.kit.every import for_each, for_rows
from tests.worker.fake_tensorrt_llm import VERSIONS, Package

ALL = for_each(VERSIONS)
ROOT = Path(__file__).parents[3]
TABLE = ROOT / "services/worker/engines/trtllm/releases.toml"
OWN = Sampling(temperature=0.6, top_p=0.95)
PENALTIES = {"penalties", "min_p"}


def config(**changes: Any) -> WorkerConfig:
    return WorkerConfig(model="/models/m", slots=64, **changes)


@for_rows(
    [
        ("1.2.1", {*PENALTIES, "min_tokens", "priority"}, False),
        ("1.3.0rc15", PENALTIES, False),
        ("1.3.0rc24", set(), True),
        ("1.4.0rc1", set(), True),
    ]
)
def test_an_engine_gets_the_arguments_that_its_release_takes(
    version: str, lost: set[str], pauses: bool
) -> None:
    """`pauses`: whether requests are paused, which must free their blocks."""
    release = known_release(version)
    own = {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}}
    found = llm_arguments(config(max_model_len=4096, kv_tokens=9000, engine_args=own), release)
    assert (found["max_batch_size"], found["max_seq_len"]) == (64, 4096)
    assert found["enable_chunked_prefill"] is True
    cache = {"enable_block_reuse": True, "event_buffer_max_size": 65_536, "max_tokens": 9000}
    assert found["kv_cache_config"] == {**cache, "free_gpu_memory_fraction": 0.8}
    is_new = version not in VERSIONS[:2]
    assert ("telemetry_config" in found, "scheduler_config" in found) == (is_new, is_new)
    lacks = lacking(found, release, 512)
    assert set(lacks) == {*lost, "seed", "grammar", "vision"}
    assert "accepts and ignores seed" in lacks["seed"]
    llm = Package(version).root.LLM(**found)
    llm.runtime.shutdown()
    assert not llm.runtime.breaches
    asked = request(stop_ids=[5], seed=1)
    sampling = sampling_arguments(asked, Sampling(repetition_penalty=1.05), [5], release)
    assert not set(sampling) & set(release.ignored)
    # A KV connector refuses the policy, and with pipelines paused requests keep their blocks.
    for changes, expected in (
        ({}, pauses),
        ({"pipeline_parallel_size": 2}, False),
        ({"kv_connector_config": {"connector": "lmcache"}}, False),
    ):
        scheduler = llm_arguments(config(engine_args=changes), release).get("scheduler_config", {})
        assert ("capacity_scheduler_policy" in scheduler) is expected, changes


@for_rows(
    [
        (
            {"kv_cache_config": {"enable_block_reuse": False}},
            {"prefix_cache", "kv_events", "retention", "grammar"},
        ),
        ({"kv_cache_config": {"event_buffer_max_size": 0}}, {"kv_events", "grammar"}),
        ({"guided_decoding_backend": None}, {"guided", "grammar"}),
        ({"guided_decoding_backend": "llguidance"}, set()),
        (
            {"speculative_config": {"decoding_type": "MTP"}},
            {*PENALTIES, "min_tokens", "logit_bias", "grammar"},
        ),
        ({"scheduler_config": {"waiting_queue_policy": "fcfs"}}, {"priority", "grammar"}),
    ]
)
def test_own_arguments_cost_features(own: dict[str, Any], lost: set[str]) -> None:
    release = known_release("1.4.0rc1")
    found = lacking(llm_arguments(config(engine_args=own), release), release, 512)
    assert set(found) == lost | {"seed", "vision"}


@ALL
def test_sampling_goes_without_strings_and_with_values_of_the_library(version: str) -> None:
    release = known_release(version)
    found = sampling_arguments(request(stop_ids=[7, 9, 5]), OWN, [5, 7], release)
    assert (found["end_id"], found["pad_id"], found["ignore_eos"]) == (5, 5, False)
    assert found["stop_token_ids"] == [7, 9]
    assert found["include_stop_str_in_output"] is True
    assert found["detokenize"] is False
    assert (found["temperature"], found["top_p"]) == (0.6, 0.95)
    assert not {"n", "best_of", "use_beam_search", "stop", "logprobs", "seed"} & set(found)
    for asked, expected in (
        ({"max_tokens": 0}, {"max_tokens": 1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"logprobs": 0}, {"logprobs": 1}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"stop_ids": ()}, {"ignore_eos": True, "end_id": 5}),
        ({"stop_ids": (9,)}, {"ignore_eos": False, "end_id": 9}),
    ):
        options: dict[str, Any] = {"stop_ids": (5, 7), **asked}
        found = sampling_arguments(request(**options), OWN, [5, 7], release)
        assert {name: found[name] for name in expected} == expected
        Package(version).root.SamplingParams(**found)


def test_min_tokens_holds_back_one_end_token_only() -> None:
    release = known_release(VERSIONS[-1])
    found = sampling_arguments(request(stop_ids=[5], min_tokens=3), OWN, [5], release)
    assert found["min_tokens"] == 3
    with pytest.raises(Invalid, match="one end token"):
        sampling_arguments(request(stop_ids=[5, 7], min_tokens=3), OWN, [5, 7], release)


@ALL
def test_priority_and_trace_are_sent_where_the_release_takes_them(version: str) -> None:
    release, trace = known_release(version), {"traceparent": "00-0af7-b7ad-01"}
    assert generate_arguments(request(), release) == {"streaming": True}
    found = generate_arguments(request(priority=1, cache_salt="s", trace=trace), release)
    sent = {"cache_salt": "s", "priority": 0.75, "trace_headers": trace}
    taken = {name: value for name, value in sent.items() if name in release.generate}
    assert found == {"streaming": True, **taken}
    if "priority" in release.generate:
        lowest = generate_arguments(request(priority=-1000), release)
        assert 0.0 <= lowest["priority"] < 0.01


def output(ids: list[int], reason: str | None = None, stop: Any = None, **more: Any) -> Any:
    out = SimpleNamespace(
        token_ids=ids, finish_reason=reason, stop_reason=stop, logprobs=more.pop("logprobs", None)
    )
    return SimpleNamespace(outputs=[out], **{"cached_tokens": 2, **more})


def progress(**changes: Any) -> TrtllmProgress:
    asked = {"ids": [1, 2, 3], "stop_ids": (5, 7), "max_tokens": 10, **changes}
    return TrtllmProgress(request(**asked), [5, 7])


def test_each_delta_is_what_is_new_and_a_stop_token_waits_until_it_is_the_end() -> None:
    turn = progress()
    assert turn.read(output([10])) == EngineDelta([10], cached=2)
    assert turn.read(output([10, 7])) == EngineDelta([])
    assert turn.read(output([10, 7, 11])) == EngineDelta([7, 11])
    last = turn.read(output([10, 7, 11, 13], "length"))
    assert last == EngineDelta([13], finish=FinishReason.LENGTH)


@for_rows(
    [
        ([10, 5], None, 5),
        ([10], None, 5),  # the end id is left out
        ([10], 7, 7),
        ([], None, 5),  # the list has shrunk
    ]
)
def test_every_way_to_stop_has_its_finish_reason(
    last: list[int], stop_reason: Any, stop_id: int
) -> None:
    turn = progress()
    assert turn.read(output([10])).ids == [10]
    found = turn.read(output(last, "stop", stop_reason))
    assert found == EngineDelta([], finish=FinishReason.STOP, stop_id=stop_id)


def test_end_that_is_none_of_the_requests_own_is_its_limit_the_windows_or_a_failure() -> None:
    turn = progress(max_tokens=10)
    assert turn.read(output([10, 11], "length")).finish is FinishReason.LENGTH
    assert turn.cut_at == 5, "the worker cut it at its window"
    turn = progress(max_tokens=2)
    turn.read(output([10, 11], "length"))
    assert turn.cut_at is None
    assert progress().read(output([10, 7], "length")).finish is FinishReason.STOP
    assert progress().read(output([], "cancelled")).finish is FinishReason.CANCELLED
    with pytest.raises(EngineFailed):
        progress().read(output([10], "timeout"))
    prefilled = progress(max_tokens=0).read(output([10], "length", cached_tokens=96))
    assert prefilled == EngineDelta([], cached=3, finish=FinishReason.LENGTH)


def test_logprobs_are_read_in_both_forms() -> None:
    values = {10: -0.5, 11: -0.1, 12: -3.0}
    told = [{token: SimpleNamespace(logprob=value) for token, value in values.items()}]
    read = progress(logprobs=1).read(output([10], logprobs=told))
    assert read.logprobs == [[(10, -0.5), (11, -0.1)]]
    turn = progress(logprobs=0)
    turn.read(output([10], logprobs=[-0.7]))
    assert turn.read(output([10, 11], logprobs=[-0.7, -0.9])).logprobs == [[(11, -0.9)]]


def test_a_version_that_cannot_be_read_counts_as_the_oldest_and_an_old_one_is_refused() -> None:
    assert known_release("").ignored == known_release("1.2.0").ignored
    with pytest.raises(ValueError, match="is too old"):
        known_release("1.1.0")
