"""Arguments for TensorRT-LLM by what a release takes, and deltas from its outputs."""

from types import SimpleNamespace
from typing import Any

import pytest

from schemas.conversation import Sampling
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.runtime.config import WorkerConfig
from services.worker.engine import FEATURES, EngineDelta
from services.worker.engines.trtllm.releases import Release, known_release
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
NEW = for_each(VERSIONS[2:])
OWN = Sampling(temperature=0.6, top_p=0.95)


def offered(arguments: dict[str, Any], of: Release, vocab_size: int | None = 512) -> frozenset[str]:
    return FEATURES - set(lacking(arguments, of, vocab_size))


def config(**changes: Any) -> WorkerConfig:
    return WorkerConfig(model="/models/m", slots=64, **changes)


@ALL
def test_an_engine_gets_the_arguments_that_its_release_takes(version: str) -> None:
    release = known_release(version)
    found = llm_arguments(config(max_model_len=4096, kv_tokens=9000), release)
    assert found["max_batch_size"] == 64
    assert found["max_seq_len"] == 4096
    assert found["enable_chunked_prefill"] is True
    assert found["kv_cache_config"] == {
        "enable_block_reuse": True,
        "event_buffer_max_size": 65_536,
        "max_tokens": 9000,
    }
    is_old = version in VERSIONS[:2]
    assert ("telemetry_config" in found, "scheduler_config" in found) == (not is_old, not is_old)
    has = offered(found, release)
    assert ("priority" in has) is not is_old
    assert {"salt", "kv_events", "guided"} <= has
    assert "grammar" not in has
    llm = Package(version).root.LLM(**found)
    llm.runtime.shutdown()
    assert not llm.runtime.breaches


def test_the_operator_has_the_last_word_also_inside() -> None:
    own = {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.8},
        "enable_chunked_prefill": False,
    }
    found = llm_arguments(config(engine_args=own), known_release("1.4.0rc1"))
    assert found["kv_cache_config"]["event_buffer_max_size"] == 65_536
    assert found["kv_cache_config"]["free_gpu_memory_fraction"] == 0.8
    assert found["enable_chunked_prefill"] is False
    assert "vocabulary is not known" in lacking(found, known_release("1.4.0rc1"))["logit_bias"]


@for_rows(
    [
        (
            {"kv_cache_config": {"enable_block_reuse": False}},
            {"prefix_cache", "kv_events", "retention", "grammar"},
        ),
        ({"kv_cache_config": {"event_buffer_max_size": 0}}, {"kv_events", "grammar"}),
        ({"kv_cache_config": {"kv_events_config": {"endpoint": "e"}}}, {"kv_events", "grammar"}),
        ({"guided_decoding_backend": None}, {"guided", "grammar"}),
        ({"guided_decoding_backend": "llguidance"}, set()),
        ({"scheduler_config": {"waiting_queue_policy": "fcfs"}}, {"priority", "grammar"}),
    ]
)
def test_own_arguments_cost_features(own: dict[str, Any], lost: set[str]) -> None:
    release = known_release("1.4.0rc1")
    found = offered(llm_arguments(config(engine_args=own), release), release)
    assert FEATURES - found == lost | {"seed", "vision"}


@ALL
def test_requests_are_paused_only_where_that_frees_their_blocks(version: str) -> None:
    """A KV connector refuses the policy."""
    release = known_release(version)
    for own, pauses in (
        ({}, version in VERSIONS[3:]),
        ({"pipeline_parallel_size": 2}, False),
        ({"kv_connector_config": {"connector": "lmcache"}}, False),
    ):
        found = llm_arguments(config(engine_args=own), release).get("scheduler_config", {})
        assert ("capacity_scheduler_policy" in found) is pauses


@ALL
def test_an_argument_that_a_release_ignores_is_lacking_and_not_sent(version: str) -> None:
    of = known_release(version)
    lacks = lacking(llm_arguments(config(), of), of, 512)
    assert "accepts and ignores seed" in lacks["seed"]
    assert ("penalties" in lacks, "min_p" in lacks, "min_tokens" in lacks) == (
        version not in VERSIONS[3:],
        version not in VERSIONS[3:],
        version in VERSIONS[:2],
    )
    found = sampling_arguments(
        request(stop_ids=[5], seed=1), Sampling(repetition_penalty=1.05), [5], of
    )
    assert not set(found) & set(of.ignored)


@NEW
def test_min_tokens_holds_back_one_end_token_only(version: str) -> None:
    of = known_release(version)
    assert sampling_arguments(request(stop_ids=[5], min_tokens=3), OWN, [5], of)["min_tokens"] == 3
    with pytest.raises(Invalid, match="one end token") as caught:
        sampling_arguments(request(stop_ids=[5, 7], min_tokens=3), OWN, [5, 7], of)
    assert caught.value.info.param == "min_tokens"


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
        ([10, 7], 7, 7),
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


def test_end_that_is_none_of_the_requests_own() -> None:
    turn = progress(max_tokens=10)
    assert turn.read(output([10, 11], "length")).finish is FinishReason.LENGTH
    assert turn.cut_at == 5, "the worker cut it at its window"
    turn = progress(max_tokens=2)
    turn.read(output([10, 11], "length"))
    assert turn.cut_at is None
    assert progress().read(output([10, 7], "length")).finish is FinishReason.STOP
    assert progress().read(output([], "cancelled")).finish is FinishReason.CANCELLED


def test_prefill_has_no_output_and_other_ends_are_failures() -> None:
    prefilled = EngineDelta([], cached=3, finish=FinishReason.LENGTH)
    for ids, reason in (([10], "length"), ([5], "stop")):
        found = progress(max_tokens=0).read(output(ids, reason, cached_tokens=96))
        assert found == prefilled, "cached is never more than the prompt"
    for made in (output([10], "timeout"), SimpleNamespace(outputs=[], finished=False)):
        with pytest.raises(EngineFailed):
            progress().read(made)


def test_logprobs_are_read_in_both_forms() -> None:
    values = {10: -0.5, 11: -0.1, 12: -3.0}
    told = [{token: SimpleNamespace(logprob=value) for token, value in values.items()}]
    read = progress(logprobs=1).read(output([10], logprobs=told))
    assert read.logprobs == [[(10, -0.5), (11, -0.1)]]
    turn = progress(logprobs=0)
    turn.read(output([10], logprobs=[-0.7]))
    assert turn.read(output([10, 11], logprobs=[-0.7, -0.9])).logprobs == [[(11, -0.9)]]
