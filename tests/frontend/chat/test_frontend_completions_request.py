"""Tests requests of Completions: the four forms of prompts, choices, and refusals."""

import json
from typing import Any

import pytest

from schemas.conversation import Hints, OutputFormat, RawPrompt, Sampling
from schemas.errors import Invalid
from schemas.frames import pack_ids
from services.frontend.apis.completions.request import Completions, CompletionsRequest
from services.frontend.apis.completions.routes import API


def ask(**fields: Any) -> CompletionsRequest:
    body = json.dumps({"model": "m", "prompt": "Once", **fields}).encode()
    return Completions("fp").parse(body, {"user-agent": "ua"})


def refused(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(Invalid) as caught:
        ask(**fields)
    return caught.value.info.param, caught.value.info.code


@pytest.mark.parametrize(
    ("prompt", "raw"),
    [
        ("Once", [RawPrompt("Once")]),
        ("", [RawPrompt("")]),
        (None, [RawPrompt("")]),
        (["a", "b"], [RawPrompt("a"), RawPrompt("b")]),
        ([1, 2, 4294967295], [RawPrompt(token_ids=pack_ids([1, 2, 4294967295]))]),
        (
            [[1], [2, 3]],
            [RawPrompt(token_ids=pack_ids([1])), RawPrompt(token_ids=pack_ids([2, 3]))],
        ),
        (["a", [2]], [RawPrompt("a"), RawPrompt(token_ids=pack_ids([2]))]),
    ],
)
def test_every_form_of_prompt_is_parsed(prompt: Any, raw: list[RawPrompt]) -> None:
    asked = ask(prompt=prompt)
    assert [conversation.prompt for conversation in asked.conversations] == raw
    assert all(conversation.messages == [] for conversation in asked.conversations)


def test_each_prompt_has_n_choices() -> None:
    asked = ask(prompt=["a", "b"], n=2, seed=5, best_of=2)
    result = [(each.prompt.text, each.sampling.seed) for each in asked.conversations if each.prompt]
    assert result == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]


def test_special_tokens_can_be_left_out() -> None:
    assert ask(add_special_tokens=False).conversations[0].prompt == RawPrompt(
        "Once", add_special_tokens=False
    )


def test_supported_fields_reach_the_conversation() -> None:
    conversation = ask(
        max_tokens=3, logprobs=5, temperature=0, stop=["x"], top_k=2, min_tokens=1, guided_json={"type": "object"},
        priority=1, cache_salt="s",
    ).conversations[0]  # fmt: skip
    assert conversation.sampling == Sampling(
        max_tokens=3, logprobs=5, temperature=0.0, stop=["x"], top_k=2, min_tokens=1
    )
    assert conversation.format == OutputFormat("json_schema", {"type": "object"})
    assert conversation.hints == Hints(priority=1, cache_salt="s")
    assert conversation.client.user_agent == "ua"
    assert ask().conversations[0].sampling == Sampling(max_tokens=16)
    assert ask(max_tokens=0).conversations[0].sampling == Sampling(max_tokens=0)


def test_echo_precedes_every_choice() -> None:
    assert ask(prompt=["a", "b"], n=2, echo=True).shape.echoes == ["a", "a", "b", "b"]
    assert ask(prompt=["a", "b"], echo=False).shape.echoes == ["", ""]


def test_suffix_is_dropped_and_noted() -> None:
    assert ask(suffix="end").notes == ["suffix"]
    assert ask(suffix="").notes == []


@pytest.mark.parametrize(
    ("fields", "result"),
    [
        ({"prompt": []}, ("prompt", None)),
        ({"prompt": [[]]}, ("prompt", None)),
        ({"prompt": [1, "a"]}, ("prompt", "invalid_type")),
        ({"prompt": [1, [2]]}, ("prompt", "invalid_type")),
        ({"prompt": [-1]}, ("prompt[0]", "integer_below_min_value")),
        ({"prompt": [2**32]}, ("prompt[0]", "integer_above_max_value")),
        ({"prompt": [1.5]}, ("prompt[0]", "invalid_type")),
        ({"prompt": ["a"] * 100, "n": 11}, ("prompt", None)),
        ({"prompt": [1, 2], "echo": True}, ("echo", "unsupported_value")),
        ({"echo": True, "logprobs": 1}, ("logprobs", None)),
        ({"logprobs": 21}, ("logprobs", "integer_above_max_value")),
        ({"best_of": 2}, ("best_of", "unsupported_value")),
        ({"best_of": 1, "n": 2}, ("best_of", "unsupported_value")),
        ({"n": 0}, ("n", "integer_below_min_value")),
        ({"stop": ""}, ("stop", "invalid_value")),
    ],
)
def test_refusal_names_the_field(
    fields: dict[str, Any], result: tuple[str | None, str | None]
) -> None:
    assert refused(**fields) == result


def test_requests_of_the_sdks_own_tests_are_accepted() -> None:
    asked = ask(
        best_of=0, echo=True, frequency_penalty=-2, logit_bias={"foo": 0}, logprobs=0, max_tokens=16, n=1,
        presence_penalty=-2, seed=0, stop="\n", stream=False, suffix="test.", temperature=1, top_p=1, user="user-1234",
        stream_options={"include_obfuscation": True, "include_usage": True},
    )  # fmt: skip
    assert asked.shape.echoes == ["Once"]
    assert asked.conversations[0].sampling.logprobs == 0


def test_pipeline_error_names_the_field_of_this_api() -> None:
    def param(name: str) -> object:
        return json.loads(API.errors.reply(Invalid("no", param=name).info, "req_1", None).body)[
            "error"
        ]["param"]

    assert param("stop_sequences") == "stop"
    assert param("format") == "structured_outputs"
    assert param("messages") == "prompt"
