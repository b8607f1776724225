"""The last check before an engine."""

from array import array
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import OutputFormat
from schemas.errors import ContextOverflow, Invalid
from services.worker.engine import EngineImage, EngineInfo, EngineRequest
from services.worker.engine_checks import check
from services.worker.features import SAMPLING_FIELDS
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
        ([1, -1], "not a list of token ids"),
        ([1, 50, *[0] * 400], "token id 50 is outside the vocabulary of 50"),
        (array("I", [1, 2**32 - 1]), "token id 4294967295 is outside the vocabulary of 50"),
    ]
)
def test_ids_that_would_kill_an_engine_are_refused(ids: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        check(request(ids), info())
    assert caught.value.info.param == "prompt"


@for_rows(
    [
        (101, "prompt is too long: 101 tokens > 100 maximum"),
        (95, "input length and `max_tokens` exceed context limit: 95 + 10 > 100"),
    ]
)
def test_an_overflow_has_the_words_by_which_clients_compact(length: int, words: str) -> None:
    with pytest.raises(ContextOverflow) as caught:
        check(request([1] * length), info())
    assert caught.value.info.message.startswith(words)


@for_rows(
    [
        ("max_tokens", None),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("repetition_penalty", 0.0),
        ("seed", 2**64),
        ("logit_bias", {50: 1.0}),
    ]
)
def test_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        check(request(**{field: value}), info())
    assert caught.value.info.param == field


@for_rows(
    [
        ("sampling", "temperature", 0.7),
        ("min_p", "min_p", 0.1),
        ("seed", "seed", 0),
        ("penalties", "presence_penalty", 0.1),
        ("min_tokens", "min_tokens", 3),
        ("logit_bias", "logit_bias", {3: 1.0}),
        ("logprobs", "logprobs", 0),
        ("salt", "cache_salt", "tenant"),
    ]
)
def test_a_missing_feature_is_refused_by_name(feature: str, field: str, value: Any) -> None:
    refused_without(feature, field, request(**{field: value}))


def refused_without(feature: str, field: str, asked: EngineRequest) -> None:
    check(asked, info())
    with pytest.raises(Invalid, match=f"{field} is not supported by the trial engine") as caught:
        check(asked, info(features=ALL - {feature}))
    assert caught.value.info.param == field


def test_alternatives_forms_and_images_need_their_features() -> None:
    refused_without("top_logprobs", "top_logprobs", request(logprobs=5))
    refused_without("guided", "format", request(guided=OutputFormat("json_object")))
    with pytest.raises(Invalid, match="image is not supported"):
        check(request(images=[EngineImage("0" * 40, 1, 1, b"")]), info())


def test_neutral_values_need_no_feature() -> None:
    neutral: dict[str, Any] = dict.fromkeys(("temperature", "min_p", "frequency_penalty"), 0.0)
    neutral |= {"presence_penalty": 0.0, "top_p": 1.0, "repetition_penalty": 1.0}
    neutral |= {"top_k": 0, "min_tokens": 0, "cache_salt": "tenant"}
    check(request(**neutral), info(features=frozenset(), block_tokens=None))
