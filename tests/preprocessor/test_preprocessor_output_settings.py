"""How long an answer may be, sampling that no worker can take, and the settings with which a broken
call is decoded again."""

from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.conversation import Sampling
from schemas.errors import ContextOverflow, ErrorKind, Invalid
from schemas.events import BrokenCall
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.output_settings import (
    MAX_STOP_CHARS,
    MAX_STOPS,
    SECOND_TEMPERATURE,
    USEFUL_ANSWER,
    OutputSettings,
    check_sampling,
    limit_output,
    output_settings,
    second_try,
)
from tests.kit.every import Cases, for_rows

CALL = BrokenCall("unreadable", tokens=40)
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


def test_limits_are_those_of_client_operator_and_window(setup: ModelSetup) -> None:
    output = output_settings(Sampling(), setup, 50, window=1000)
    assert output.max_tokens == output.sampling.max_tokens == 950
    assert output.window_limited
    output = output_settings(Sampling(max_tokens=7, temperature=0.5), setup, 50)
    assert (output.max_tokens, output.window_limited) == (7, False)
    assert output.sampling == Sampling(max_tokens=7, temperature=0.5)
    with pytest.raises(ContextOverflow, match="prompt is too long: 500 tokens > 112 maximum"):
        output_settings(Sampling(), setup, 500, window=119)
    capped = changed(setup, window_cap=500, max_model_len=500)
    assert [capped.effective_window(w) for w in (None, 400, 600)] == [500, 400, 500]
    assert [setup.effective_window(w) for w in (None, 400, 10**6)] == [262_144, 400, 10**6]


def test_sampling_and_stops_of_the_model_fill_unset_values(setup: ModelSetup) -> None:
    tuned = changed(setup, sampling=Sampling(temperature=0.6, top_p=0.95, top_k=20))
    sampling = output_settings(Sampling(top_p=0.5), tuned, 10).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.5, 20)
    own = list(setup.stop_ids)
    for asked, stop_ids in (
        (Sampling(stop_token_ids=[5, own[0]]), [*own, 5]),
        (Sampling(stop_token_ids=[5], ignore_eos=True), [5]),
    ):
        assert output_settings(asked, setup, 10).stop_ids == stop_ids


def settings(setup: ModelSetup, **sampling: Any) -> OutputSettings:
    return output_settings(Sampling(**{"max_tokens": 100, **sampling}), setup, prompt_tokens=10)


def test_tokens_of_the_call_count(setup: ModelSetup) -> None:
    again = second_try(settings(setup), CALL, ())
    assert (again.max_tokens, again.sampling.max_tokens) == (60, 60)
    assert not again.window_limited


@for_rows(
    [
        ({"temperature": 0.0}, {"temperature": SECOND_TEMPERATURE}),
        ({"temperature": 0.01, "seed": 4}, {"temperature": SECOND_TEMPERATURE, "seed": 5}),
        ({"temperature": 0.9, "seed": 2**63 - 1}, {"seed": 0}),
        ({"temperature": 1.0}, {}),
        ({"temperature": 1.0, "top_k": 1}, {"top_k": None}),
        ({"temperature": 1.0, "top_k": 5, "top_p": 0.9}, {}),
    ]
)
def test_sampling_changes_a_little(
    sampling: dict[str, Any], changes: dict[str, Any], setup: ModelSetup
) -> None:
    first = settings(setup, **sampling)
    again = second_try(first, CALL, ("sampling", "seed"))
    assert again.sampling == replace(first.sampling, **{**changes, "max_tokens": 60})


def test_engine_without_sampling_gets_none(setup: ModelSetup) -> None:
    first = settings(setup, temperature=0.0)
    assert second_try(first, CALL, ("prefix_cache",)).sampling.temperature == 0.0
