"""How long an answer may be, and sampling that no worker can take."""

from typing import Any

import pytest

from schemas.conversation import Sampling
from schemas.errors import ContextOverflow, ErrorKind, Invalid
from services.preprocessor.limit import (
    MAX_STOP_CHARS,
    MAX_STOPS,
    USEFUL_ANSWER,
    check_sampling,
    limit_output,
)
from tests.kit.every import Cases, for_rows

OVERFLOW = None
LIMITS = [
    # (prompt, max_tokens of the request, window, the operator's limit): (max_tokens, cut by window)
    ((1000, None, 32_768, 2048), (2048, False)),
    ((1000, 16, 32_768, 2048), (16, False)),
    ((31_000, None, 32_768, 4096), (1768, True)),
    ((32_768, 0, 32_768), (0, False)),
    ((32_700, 32_000, 32_768), OVERFLOW),
    ((480, None, 512), (32, True)),
]


@for_rows(LIMITS)
def test_answer_is_limited_by_request_operator_and_window(numbers: Any, expected: Any) -> None:
    """A short answer fits where a useful one does not; a prefill needs no room."""
    if expected is OVERFLOW:
        with pytest.raises(ContextOverflow):
            limit_output(*numbers)
    else:
        assert limit_output(*numbers) == expected


def test_error_text_makes_clients_compact() -> None:
    with pytest.raises(ContextOverflow) as caught:
        limit_output(190_000, 32_000, 131_072)
    info = caught.value.info
    assert info.kind is ErrorKind.CONTEXT_OVERFLOW
    assert info.message == f"prompt is too long: 190000 tokens > {131_072 - USEFUL_ANSWER} maximum"
    assert info.code == "context_length_exceeded"
    assert info.details == {
        "prompt_tokens": 190_000,
        "max_prompt_tokens": 130_048,
        "context_window": 131_072,
        "max_tokens": 32_000,
    }


def test_ids_outside_the_vocabulary_and_too_many_stops_are_refused(cases: Cases) -> None:
    for sampling, param in (
        (Sampling(stop_token_ids=[10]), "stop_token_ids"),
        (Sampling(logit_bias={10: 1.0}), "logit_bias"),
        (Sampling(logit_bias=dict.fromkeys(range(1025), 1.0)), "logit_bias"),
        (Sampling(stop=["x"] * (MAX_STOPS + 1)), "stop_sequences"),
        (Sampling(stop=["x" * (MAX_STOP_CHARS + 1)]), "stop_sequences"),
    ):
        with cases.case(str(sampling)[:80]):
            with pytest.raises(Invalid) as refused:
                check_sampling(sampling, 10)
            assert refused.value.info.param == param
    check_sampling(Sampling(stop_token_ids=[0, 9], logit_bias={0: -100, 9: 100}), 10)
    check_sampling(Sampling(stop=["x" * MAX_STOP_CHARS] * MAX_STOPS), 10)
