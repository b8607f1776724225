"""Tests the effect of each field of a Chat Completions request."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.chat import completion_create_params

from schemas.conversation import (
    Grammar,
    Hints,
    OutputFormat,
    Sampling,
    Thinking,
    ToolChoice,
    ToolSpec,
)
from schemas.errors import Invalid
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import ChatRequest, parse

PLAIN = ChatSettings()
USER = {"role": "user", "content": "hi"}
LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"b": 1, "a": 2}},
}
PATCH = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}},
    },
}
SCHEMA = {"type": "object", "properties": {"z": {}, "a": {}}}


def ask(
    headers: dict[str, str] | None = None, settings: ChatSettings = PLAIN, **fields: Any
) -> ChatRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return parse(json.dumps(body).encode(), headers or {}, settings)


def refused(**fields: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        ask(**fields)
    return caught.value


def test_smallest_request_is_parsed() -> None:
    asked = ask()
    assert asked.conversation.model == "m"
    assert not asked.stream
    assert len(asked.conversations) == 1
    assert asked.conversation.sampling == Sampling()
    assert asked.conversation.thinking == Thinking()
    assert asked.conversation.format is None
    assert not asked.conversation.prefill
    assert asked.notes == []


def test_sampling_fields_reach_the_conversation() -> None:
    sampling = ask(
        max_tokens=9, max_completion_tokens=7, temperature=1, top_p=0.5, presence_penalty=-2, frequency_penalty=2,
        seed=-9007199254740991, stop="\n", logit_bias={"50": 101, "7": -1.5, "foo": 0}, top_k=-1, min_p=0.1,
        repetition_penalty=1.1, min_tokens=2, stop_token_ids=[5], include_stop_str_in_output=True, ignore_eos=True,
        logprobs=True, top_logprobs=3,
    ).conversation.sampling  # fmt: skip
    assert sampling == Sampling(
        max_tokens=7, temperature=1.0, top_p=0.5, presence_penalty=-2.0, frequency_penalty=2.0,
        seed=-9007199254740991, stop=["\n"], logit_bias={50: 100.0, 7: -1.5}, top_k=-1, min_p=0.1,
        repetition_penalty=1.1, min_tokens=2, stop_token_ids=[5], include_stop=True, ignore_eos=True, logprobs=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"max_tokens": 9}, Sampling(max_tokens=9)),
        ({"max_tokens": 0, "max_completion_tokens": 0}, Sampling(max_tokens=0)),
        ({"stop": ["a", "b", 17]}, Sampling(stop=["a", "b"], stop_token_ids=[17])),
        ({"stop": None, "temperature": None, "n": None, "seed": None}, Sampling()),
        ({"logprobs": True}, Sampling(logprobs=0)),
        ({"logprobs": False, "top_logprobs": 0}, Sampling()),
        ({"seed": 2**70 + 5}, Sampling(seed=5)),
    ],
)
def test_each_sampling_field_is_read(fields: dict[str, Any], wanted: Sampling) -> None:
    assert ask(**fields).conversation.sampling == wanted


def test_each_choice_has_its_own_seed() -> None:
    seeds = [each.sampling.seed for each in ask(n=3, seed=41).conversations]
    assert seeds == [41, 42, 43]
    assert [each.sampling.seed for each in ask(n=2).conversations] == [None, None]
    assert [each.sampling.seed for each in ask(n=2, seed=2**63 - 1).conversations] == [
        2**63 - 1,
        -(2**63),
    ]


def test_tools_are_converted() -> None:
    conversation = ask(
        tools=[LOOK, PATCH, {"type": "custom", "custom": {"name": "say"}}]
    ).conversation
    assert conversation.tools == [
        ToolSpec("look", "Looks.", {"b": 1, "a": 2}),
        ToolSpec("patch", kind="custom", grammar=Grammar("lark", "start: /x/")),
        ToolSpec("say", kind="custom"),
    ]
    assert list(conversation.tools[0].schema) == ["b", "a"]
    assert ask(
        tools=[{"type": "function", "function": {"name": "f", "strict": True}}]
    ).conversation.tools == [ToolSpec("f", strict=True)]
    assert ask(tools=[LOOK, PATCH]).shape.freeform == {"patch"}


def test_legacy_functions_are_tools() -> None:
    asked = ask(functions=[LOOK["function"]], function_call={"name": "look"})
    assert asked.conversation.tools == [ToolSpec("look", "Looks.", {"b": 1, "a": 2})]
    assert asked.conversation.tool_choice == ToolChoice("tool", "look", parallel=False)
    assert asked.shape.legacy
    both = ask(functions=[{"name": "look"}, {"name": "other"}], tools=[LOOK], function_call="none")
    assert [tool.name for tool in both.conversation.tools] == ["look", "other"]
    assert both.conversation.tools[0].description == "Looks."
    assert both.conversation.tool_choice == ToolChoice("none", parallel=False)
    assert not both.shape.legacy
    newer = ask(
        functions=[{"name": "look"}], tools=[LOOK], function_call="none", tool_choice="auto"
    )
    assert newer.conversation.tool_choice == ToolChoice()
    with pytest.raises(Invalid) as refused:
        ask(function_call={"name": "look"})
    assert refused.value.info.param == "function_call"


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("none", ToolChoice("none")),
        ("auto", ToolChoice()),
        ("required", ToolChoice("any")),
        ({"type": "function", "function": {"name": "look"}}, ToolChoice("tool", "look")),
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice("tool", "patch")),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "look"}}],
                },
            },
            ToolChoice(allowed=["look"]),
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "custom", "custom": {"name": "patch"}}],
                },
            },
            ToolChoice("any", allowed=["patch"]),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            ToolChoice("none"),
        ),
    ],
)
def test_tool_choice_is_converted(choice: Any, wanted: ToolChoice) -> None:
    assert ask(tools=[LOOK, PATCH], tool_choice=choice).conversation.tool_choice == wanted
    single = ask(
        tools=[LOOK, PATCH], tool_choice=choice, parallel_tool_calls=False
    ).conversation.tool_choice
    assert single == msgspec.structs.replace(wanted, parallel=False)


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_tool_choice_none_needs_no_tools(choice: str) -> None:
    assert ask(tool_choice=choice, parallel_tool_calls=True, tools=[]).conversation.tools == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"reasoning_effort": "high"}, Thinking("adaptive", effort="high")),
        ({"reasoning_effort": "none"}, Thinking("disabled", effort="none")),
        ({"reasoning_effort": None}, Thinking()),
        ({"thinking": {"type": "enabled", "budget_tokens": 500}}, Thinking("enabled", 500)),
        (
            {"thinking": {"type": "disabled"}, "reasoning_effort": "high"},
            Thinking("disabled", effort="high"),
        ),
        ({"thinking": {"type": "auto"}}, Thinking("adaptive")),
        ({"thinking": True}, Thinking("enabled")),
        ({"thinking": False}, Thinking("disabled")),
        ({"enable_thinking": False, "reasoning_effort": "low"}, Thinking("disabled", effort="low")),
        ({"enable_thinking": True, "thinking_budget": 99}, Thinking("enabled", 99)),
        ({"reasoning": {"effort": "low", "max_tokens": 8}}, Thinking("adaptive", 8, "low")),
        ({"reasoning": {"enabled": False}}, Thinking("disabled")),
        ({"thinking_token_budget": 64}, Thinking("adaptive", 64)),
        ({"thinking_budget": 0}, Thinking("disabled", 0)),
        ({"reasoning": {"max_tokens": 0}}, Thinking("disabled", 0)),
        ({"thinking_budget": 0, "enable_thinking": True}, Thinking("enabled", 0)),
    ],
)
def test_thinking_settings_are_converted(fields: dict[str, Any], wanted: Thinking) -> None:
    assert ask(**fields).conversation.thinking == wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OutputFormat("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            OutputFormat("json_schema", SCHEMA, "n", True),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            OutputFormat("json_object", None, "n"),
        ),
        ({"guided_json": SCHEMA}, OutputFormat("json_schema", SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, OutputFormat("json_schema", SCHEMA)),
        ({"json_schema": json.dumps(SCHEMA)}, OutputFormat("json_schema", SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, OutputFormat("json_schema", SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, OutputFormat("json_object")),
    ],
)
def test_output_format_is_converted(fields: dict[str, Any], wanted: OutputFormat | None) -> None:
    assert ask(**fields).conversation.format == wanted


def test_other_supported_fields_reach_the_conversation() -> None:
    asked = ask(
        {"user-agent": "ua", "x-session-affinity": "s1"},
        stream=True, verbosity="low", chat_template_args={"a": 1, "b": 1}, chat_template_kwargs={"b": 2},
        cache_salt="salt", priority=3, nvext={"agent_hints": {"osl": 7}}, prompt_cache_key="key",
        continue_final_message=True, web_search_options={}, service_tier="auto",
    )  # fmt: skip
    conversation = asked.conversation
    assert asked.stream
    assert conversation.verbosity == "low"
    assert conversation.template_kwargs == {"a": 1, "b": 2}
    assert conversation.hints == Hints(priority=3, osl=7, cache_salt="salt")
    assert (conversation.client.session, conversation.client.user_agent) == ("s1", "ua")
    assert ask(prompt_cache_key="key").conversation.client.session == "key"
    assert conversation.prefill
    assert asked.notes == ["web_search_options"]
    assert asked.shape.service_tier == "default"


@pytest.mark.parametrize("mark", ["prefix", "partial"])
def test_answer_continues_a_prefix_message(mark: str) -> None:
    begun = [USER, {"role": "assistant", "content": "Well,", mark: True}]
    assert ask(messages=begun).conversation.prefill
    assert not ask(
        messages=[*begun[:1], {"role": "assistant", "content": "Well,"}]
    ).conversation.prefill


def test_request_selects_the_form_of_the_answer() -> None:
    header = {"x-turnwire-reasoning-field": "reasoning", "x-turnwire-reasoning-details": "1"}
    assert ask().shape.reasoning == "reasoning_content"
    assert ask(settings=ChatSettings("both", True)).shape.reasoning == "both"
    assert ask(settings=ChatSettings("both", True)).shape.details
    assert ask(header).shape.reasoning == "reasoning"
    assert ask(header).shape.details
    assert not ask({"x-turnwire-reasoning-details": "0"}, ChatSettings("both", True)).shape.details
    assert ask({"x-turnwire-reasoning-field": "nonsense"}).shape.reasoning == "reasoning_content"
    assert ask(header, include_reasoning=False).shape.reasoning == "omitted"
    assert ask(reasoning={"exclude": True}).shape.reasoning == "omitted"
    assert ask(separate_reasoning=False).shape.reasoning == "inline"
    options = ask(stream_options={"include_usage": True, "continuous_usage_stats": True}).shape
    assert (options.include_usage, options.continuous_usage) == (True, True)
    alone = ask(stream_options={"continuous_usage_stats": True}).shape
    assert (alone.include_usage, alone.continuous_usage) == (False, False)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", None),
        ({"messages": None}, "messages", "invalid_type"),
        ({"temperature": 2.5}, "temperature", "decimal_above_max_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"top_p": -1}, "top_p", "decimal_below_min_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom", "missing_required_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        (
            {"tools": [{"type": "function", "function": {}}]},
            "tools[0].function.name",
            "missing_required_parameter",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": ""}}]},
            "tools[0].function.name",
            "empty_string",
        ),
        (
            {"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "grammar"}}}]},
            "tools[0].custom.format.grammar",
            "missing_required_parameter",
        ),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": "any", "tools": [LOOK]}, "tool_choice", "invalid_value"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [LOOK]},
            "tool_choice",
            "invalid_value",
        ),
        (
            {"tool_choice": {"type": "function"}, "tools": [LOOK]},
            "tool_choice.function",
            "missing_required_parameter",
        ),
        (
            {"tool_choice": {"type": "allowed_tools"}, "tools": [LOOK]},
            "tool_choice.allowed_tools",
            "missing_required_parameter",
        ),
        (
            {"function_call": {"name": "x"}, "functions": [{"name": "y"}]},
            "function_call",
            "invalid_value",
        ),
        ({"function_call": "must", "functions": [{"name": "y"}]}, "function_call", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        ({"guided_regex": "a+"}, "guided_regex", "unsupported_value"),
        (
            {"structured_outputs": {"choice": ["a"]}},
            "structured_outputs.choice",
            "unsupported_value",
        ),
        ({"guided_json": "{"}, "guided_json", "invalid_value"),
        ({"guided_json": 5}, "guided_json", "invalid_value"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "unsupported_value"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"thinking": {"type": "maybe"}}, "thinking.type", "invalid_value"),
        ({"verbosity": "loud"}, "verbosity", "invalid_value"),
    ],
)
def test_refusal_names_the_field(fields: dict[str, Any], param: str, code: str | None) -> None:
    info = refused(**fields).info
    assert (info.param, info.code) == (param, code)
    assert param.partition("[")[0].partition(".")[0] in info.message or code == "invalid_value"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"nonsense",
        b'"text"',
        b"{",
        b'{"messages": [{"role": "\xff"}]}',
        b'{"n": 129, oh',
    ],
)
def test_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        parse(body, {}, ChatSettings())


def test_fields_without_effect_are_skipped() -> None:
    named = set(completion_create_params.CompletionCreateParamsBase.__annotations__)
    skipped: dict[str, Any] = {
        "audio": {"voice": "alloy", "format": "wav"}, "metadata": {"a": "b"}, "modalities": ["text"],
        "moderation": {"model": "m"}, "prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h", "safety_identifier": "s",
        "service_tier": "flex", "store": True, "user": "u",
    }  # fmt: skip
    assert set(skipped) < named
    plain, asked = ask().conversation, ask(**skipped, unheard_of={"of": 1}).conversation
    assert msgspec.structs.replace(asked, client=plain.client) == plain


def test_store_has_no_effect_and_is_noted() -> None:
    asked = ask(store=True, metadata={"any": ["value"]})
    assert asked.notes == ["store"]
    assert asked.conversation == ask(store=False).conversation == ask().conversation
    assert ask(store=False).notes == []


def test_every_field_of_the_sdk_is_handled() -> None:
    """A new field of the SDK must be supported or named here."""
    honoured = {
        "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "messages", "model", "modalities", "n", "parallel_tool_calls", "presence_penalty",
        "prompt_cache_key", "reasoning_effort", "response_format", "seed", "service_tier", "stop", "stream_options",
        "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "verbosity", "web_search_options",
    }  # fmt: skip
    skipped = {
        "audio", "metadata", "moderation", "prediction", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "store", "user",
    }  # fmt: skip
    named = set(completion_create_params.CompletionCreateParamsBase.__annotations__)
    assert named == honoured | skipped
