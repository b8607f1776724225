"""The last check before an engine."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import OutputFormat, Sampling
from schemas.errors import ContextOverflow, Invalid
from services.worker.admission import check
from services.worker.engine import SAMPLING_FIELDS, EngineInfo, EngineRequest
from tests.kit import engines
from tests.kit.every import for_rows

ALL = frozenset(
    {field.feature for field in SAMPLING_FIELDS.values()}
    | {"top_logprobs", "guided", "prefix_cache", "salt"}
)


def info(**changes: Any) -> EngineInfo:
    made = EngineInfo("trial", "1", 100, 4, 16, None, [2], ALL, vocab_size=50)
    return replace(made, **changes)


def request(ids: Any = (1, 2, 3), **fields: Any) -> EngineRequest:
    return engines.request(ids=ids, stop_ids=[2], **{"max_tokens": 10, **fields})


@for_rows(
    [
        ([], "empty"),
        ([1, "2"], "not a list of token ids"),
        ([1, -1], "not a list of token ids"),
        ([1, 50], "token id 50 is outside the vocabulary of 50"),
    ]
)
def test_ids_that_would_kill_an_engine_are_refused(ids: list[Any], words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        check(request(ids), info())
    assert caught.value.info.param == "prompt"


@given(
    st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 300_000), min_size=1, max_size=40),
    st.sampled_from(
        [1, 200, 255, 256, 257, 512, 16_404, 65_535, 65_536, 65_537, 151_936, 200_064, 2**24, 2**31]
    ),
    st.integers(0, 400),
)
def test_an_id_outside_the_vocabulary_is_found_wherever_it_is(
    ids: list[int], vocab: int, plain: int
) -> None:
    """Also among many that are not looked at one by one."""
    ids = [token % vocab if at % 3 else token for at, token in enumerate(ids)] + [0] * plain
    room = info(vocab_size=vocab, max_model_len=4096)
    largest = max(ids)
    if largest < vocab:
        check(request(array("I", ids)), room)
    else:
        with pytest.raises(Invalid, match=f"token id {largest} is outside"):
            check(request(array("I", ids)), room)


def test_an_overflow_has_the_words_by_which_clients_compact() -> None:
    with pytest.raises(ContextOverflow) as caught:
        check(request([1] * 101), info())
    assert caught.value.info.message == "prompt is too long: 101 tokens > 100 maximum"
    with pytest.raises(ContextOverflow) as caught:
        check(request([1] * 95), info())
    assert caught.value.info.message.startswith(
        "input length and `max_tokens` exceed context limit: 95 + 10 > 100"
    )


def test_the_kv_cache_may_be_smaller_than_the_window() -> None:
    with pytest.raises(ContextOverflow, match="60 tokens > 50 maximum"):
        check(request([1] * 60), info(kv_tokens=50))
    check(request([1] * 60), info(kv_tokens=5000))


@for_rows(
    [
        ("max_tokens", None),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("logprobs", -1),
        ("min_tokens", -1),
        ("seed", 2**64),
    ]
)
def test_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        check(request(**{field: value}), info())
    assert caught.value.info.param == field


@for_rows(
    [
        ("sampling", "temperature", {"temperature": 0.7}),
        ("sampling", "top_p", {"top_p": 0.9}),
        ("sampling", "top_k", {"top_k": 40}),
        ("min_p", "min_p", {"min_p": 0.1}),
        ("seed", "seed", {"seed": 0}),
        ("penalties", "presence_penalty", {"presence_penalty": 0.1}),
        ("penalties", "frequency_penalty", {"frequency_penalty": 0.1}),
        ("penalties", "repetition_penalty", {"repetition_penalty": 1.1}),
        ("min_tokens", "min_tokens", {"min_tokens": 3}),
        ("logit_bias", "logit_bias", {"logit_bias": {3: 1.0}}),
        ("logprobs", "logprobs", {"logprobs": 0}),
        ("top_logprobs", "top_logprobs", {"logprobs": 5}),
        ("guided", "format", {"guided": OutputFormat("json_object")}),
        ("salt", "cache_salt", {"cache_salt": "tenant"}),
    ]
)
def test_a_missing_feature_is_refused_by_name(
    feature: str, field: str, options: dict[str, Any]
) -> None:
    check(request(**options), info())
    with pytest.raises(Invalid, match=f"{field} is not supported by the trial engine") as caught:
        check(request(**options), info(features=ALL - {feature}))
    assert caught.value.info.param == field


def test_neutral_values_need_no_feature() -> None:
    neutral: dict[str, Any] = dict.fromkeys(("temperature", "min_p", "frequency_penalty"), 0.0)
    neutral |= {"presence_penalty": 0.0, "top_p": 1.0, "repetition_penalty": 1.0}
    neutral |= {"top_k": 0, "min_tokens": 0, "cache_salt": "tenant"}
    check(request(**neutral), info(features=frozenset(), block_tokens=None))


def test_every_sampling_field_has_its_place() -> None:
    """One that is in neither would be ignored by engines without it, instead of refused."""
    elsewhere = {"max_tokens", "stop", "include_stop", "ignore_eos", "stop_token_ids"}
    elsewhere |= {"return_token_ids"}
    assert {*SAMPLING_FIELDS, *elsewhere} == set(Sampling.__struct_fields__)
