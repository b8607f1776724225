"""Tests how the fields that several APIs have reach the conversation: sampling, thinking, formats,
tool choice, hints."""

from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from schemas.conversation import Hints, OutputFormat, Sampling, Thinking, ToolChoice
from services.frontend.apis.shared import sampling_fields
from services.frontend.apis.shared.sampling_fields import SamplingFields, sampling_of
from tests.kit.bodies import (
    APIS,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    Api,
    Json,
    block,
    chat_tool,
    function,
    tool,
)
from tests.kit.every import Cases

VALUES: dict[type, Any] = {float: 0.5, int: 7, bool: True}


def test_every_api_accepts_every_sampling_field(cases: Cases) -> None:
    fields = msgspec.structs.fields(SamplingFields)
    assert len(fields) > 8
    for field in fields:
        kinds = get_args(get_type_hints(SamplingFields)[field.name])
        value = next(VALUES[kind] for kind in VALUES if kind in kinds)
        for api in APIS:
            with cases.case(field=field.name, api=api.name):
                assert getattr(api.read(**{field.name: value}).sampling, field.name) == value


SAMPLING: list[tuple[Api, Json, Sampling]] = [
    (CHAT, {}, Sampling()),
    (CHAT, {"max_tokens": 9, "max_completion_tokens": 7}, Sampling(max_tokens=7)),
    (CHAT, {"stop": "\n"}, Sampling(stop=["\n"])),
    (CHAT, {"stop": ["a", "b", 17]}, Sampling(stop=["a", "b"], stop_token_ids=[17])),
    (CHAT, {"stop": None, "temperature": None, "n": None, "seed": None}, Sampling()),
    (CHAT, {"stop_token_ids": [5]}, Sampling(stop_token_ids=[5])),
    (CHAT, {"include_stop_str_in_output": True}, Sampling(include_stop=True)),
    (CHAT, {"logprobs": True}, Sampling(logprobs=0)),
    (CHAT, {"logprobs": True, "top_logprobs": 3}, Sampling(logprobs=3)),
    (CHAT, {"seed": 2**70 + 5}, Sampling(seed=5)),
    (CHAT, {"presence_penalty": -2, "top_k": -1}, Sampling(presence_penalty=-2.0, top_k=-1)),
    (
        CHAT,
        {"logit_bias": {"50": 101, "7": -1.5, "foo": 0}},
        Sampling(logit_bias={50: 100, 7: -1.5}),
    ),
    (COMPLETIONS, {}, Sampling(max_tokens=16)),
    (COMPLETIONS, {"logprobs": 5, "stop": ["x"]}, Sampling(max_tokens=16, logprobs=5, stop=["x"])),
    (MESSAGES, {}, Sampling(max_tokens=4096)),
    (
        MESSAGES,
        {"stop_sequences": ["\n\n", "END"]},
        Sampling(max_tokens=4096, stop=["\n\n", "END"]),
    ),
    (
        MESSAGES,
        {"max_tokens": 0, "thinking": block("enabled", budget_tokens=1024)},
        Sampling(max_tokens=0),
    ),
    (RESPONSES, {}, Sampling()),
    (RESPONSES, {"max_output_tokens": 16}, Sampling(max_tokens=16)),
    (RESPONSES, {"stop": "END"}, Sampling(stop=["END"])),
    (RESPONSES, {"logit_bias": {"9": 1.5}}, Sampling(logit_bias={9: 1.5})),
    (RESPONSES, {"top_logprobs": 4}, Sampling()),
    (RESPONSES, {"include": ["message.output_text.logprobs"]}, Sampling(logprobs=0)),
    (
        RESPONSES,
        {"include": ["message.output_text.logprobs"], "top_logprobs": 4},
        Sampling(logprobs=4),
    ),
    (RESPONSES, {"generate": False}, Sampling(max_tokens=0)),
    (RESPONSES, {"prompt_cache_options": {"prewarm": True}}, Sampling(max_tokens=0)),
]


def test_sampling_fields_reach_the_conversation(cases: Cases) -> None:
    for api, fields, wanted in SAMPLING:
        with cases.case(api=api.name, fields=fields):
            assert api.read(**fields).sampling == wanted


class Warmer(Sampling, frozen=True, omit_defaults=True):
    warmth: float | None = None


class WarmerFields(SamplingFields, kw_only=True):
    warmth: float | None = None


class WarmerBody(WarmerFields):
    stop_words: list[str] | None = None


def test_new_sampling_field_needs_no_other_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_fields, "Sampling", Warmer)
    monkeypatch.setattr(sampling_fields, "SamplingFields", WarmerFields)
    body = msgspec.json.decode(
        b'{"warmth": 0.25, "top_k": 3, "stop_words": ["a"]}', type=WarmerBody
    )
    assert sampling_of(body, stop=body.stop_words) == Warmer(warmth=0.25, top_k=3, stop=["a"])


THINKING: dict[Api, list[tuple[Json, Thinking]]] = {
    CHAT: [
        ({}, Thinking()),
        ({"reasoning_effort": "high"}, Thinking("adaptive", effort="high")),
        ({"reasoning_effort": "none"}, Thinking("disabled", effort="none")),
        ({"thinking": block("enabled", budget_tokens=500)}, Thinking("enabled", 500)),
        (
            {"thinking": block("disabled"), "reasoning_effort": "high"},
            Thinking("disabled", effort="high"),
        ),
        ({"thinking": block("auto")}, Thinking("adaptive")),
        ({"thinking": False}, Thinking("disabled")),
        ({"enable_thinking": True, "thinking_budget": 99}, Thinking("enabled", 99)),
        ({"reasoning": {"effort": "low", "max_tokens": 8}}, Thinking("adaptive", 8, "low")),
        ({"reasoning": {"enabled": False}}, Thinking("disabled")),
        ({"thinking_token_budget": 64}, Thinking("adaptive", 64)),
        ({"thinking_budget": 0}, Thinking("disabled", 0)),
        ({"thinking_budget": 0, "enable_thinking": True}, Thinking("enabled", 0)),
    ],
    MESSAGES: [
        ({}, Thinking()),
        ({"thinking": block("between_tools")}, Thinking("disabled")),
        ({"thinking": block("adaptive", budget_tokens=2048)}, Thinking("adaptive", 2048)),
        (
            {"thinking": block("adaptive", display="omitted")},
            Thinking("adaptive", display="omitted"),
        ),
        ({"thinking": block("adaptive", display="updates")}, Thinking("adaptive")),
        ({"thinking": block("enabled", budget_tokens=2048)}, Thinking("enabled", 2048)),
        ({"output_config": {"effort": "max"}}, Thinking("disabled", effort="max")),
        (
            {"thinking": block("disabled"), "output_config": {"effort": "low"}},
            Thinking("disabled", effort="low"),
        ),
    ],
    RESPONSES: [
        ({"reasoning": None}, Thinking()),
        ({"reasoning": {"effort": "none"}}, Thinking("disabled", effort="none")),
        ({"reasoning": {"max_tokens": 64}}, Thinking("enabled", 64)),
        ({"reasoning": {"max_tokens": 64, "effort": "low"}}, Thinking("enabled", 64, "low")),
        ({"reasoning": {"max_tokens": 0}}, Thinking("disabled", 0)),
        ({"reasoning": {"effort": "minimal"}}, Thinking("enabled", effort="minimal")),
        (
            {"reasoning": {"effort": "max", "context": "all_turns"}},
            Thinking("enabled", effort="max", history="keep"),
        ),
        ({"reasoning": {"context": "current_turn", "mode": "pro"}}, Thinking(history="drop")),
        ({"reasoning": {"context": "auto"}}, Thinking()),
    ],
}


def test_thinking_settings_are_converted(cases: Cases) -> None:
    for api, rows in THINKING.items():
        for fields, wanted in rows:
            with cases.case(api=api.name, fields=fields):
                assert api.read(**fields).thinking == wanted


PLAN: Json = {"type": "object", "properties": {"z": {}, "a": {}}}
NAMED = {"name": "n", "schema": PLAN, "strict": True}
AS_PLAN = OutputFormat("json_schema", PLAN)
AS_JSON = OutputFormat("json_object")
FORMATS: list[tuple[Api, Json, OutputFormat | None]] = [
    (CHAT, {}, None),
    (CHAT, {"response_format": block("text")}, None),
    (CHAT, {"response_format": block("json_object")}, AS_JSON),
    (
        CHAT,
        {"response_format": block("json_schema", json_schema=NAMED)},
        OutputFormat("json_schema", PLAN, "n", True),
    ),
    (
        CHAT,
        {"response_format": block("json_schema", json_schema={"name": "n"})},
        OutputFormat("json_object", None, "n"),
    ),
    (CHAT, {"guided_json": PLAN}, AS_PLAN),
    (CHAT, {"guided_json": msgspec.json.encode(PLAN).decode()}, AS_PLAN),
    (CHAT, {"structured_outputs": {"json": PLAN}}, AS_PLAN),
    (CHAT, {"structured_outputs": {"json_object": True}}, AS_JSON),
    (COMPLETIONS, {"guided_json": PLAN}, AS_PLAN),
    (MESSAGES, {"output_config": {"format": block("json_schema", schema=PLAN)}}, AS_PLAN),
    (MESSAGES, {"output_format": block("json_schema", schema=PLAN)}, AS_PLAN),
    (RESPONSES, {"text": {"format": block("json_object")}}, AS_JSON),
    (
        RESPONSES,
        {"text": {"format": block("json_schema", **NAMED, description="d")}},
        OutputFormat("json_schema", PLAN, "n", True),
    ),
]


def test_output_format_is_converted(cases: Cases) -> None:
    for api, fields, wanted in FORMATS:
        with cases.case(api=api.name, fields=fields):
            found = api.read(**fields).format
            assert found == wanted
            if wanted is not None and wanted.schema is not None:
                assert found is not None
                assert found.schema is not None
                assert list(found.schema["properties"]) == ["z", "a"]


PATCH = block("custom", custom={"name": "patch"})
NAMESPACE = block("namespace", name="ns", tools=[function("f"), block("custom", name="g")])
HOSTED = block("web_search")
TOOLS = {
    CHAT: [chat_tool(), PATCH],
    MESSAGES: [tool()],
    RESPONSES: [function("f"), NAMESPACE, block("apply_patch"), HOSTED],
}


def allowed(mode: str, *tools: Json) -> Json:
    """A choice of Chat among these tools."""
    return block("allowed_tools", allowed_tools={"mode": mode, "tools": [*tools]})


def among(mode: str, *tools: Json) -> Json:
    """A choice of Responses among these tools."""
    return block("allowed_tools", mode=mode, tools=[*tools])


LOOK_CHOICE = block("function", function={"name": "look"})
PATCH_CHOICE = block("custom", custom={"name": "patch"})
CHOICES: dict[Api, list[tuple[Any, ToolChoice]]] = {
    CHAT: [
        ("none", ToolChoice("none")),
        ("required", ToolChoice("any")),
        (LOOK_CHOICE, ToolChoice("tool", "look")),
        (PATCH_CHOICE, ToolChoice("tool", "patch")),
        (allowed("auto", LOOK_CHOICE), ToolChoice(allowed=["look"])),
        (allowed("required", PATCH_CHOICE), ToolChoice("any", allowed=["patch"])),
        (allowed("auto"), ToolChoice("none")),
    ],
    MESSAGES: [
        (block("auto"), ToolChoice()),
        (block("any"), ToolChoice("any")),
        (block("none"), ToolChoice("none")),
        (block("tool", name="look"), ToolChoice("tool", "look")),
    ],
    RESPONSES: [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("any")),
        (block("function", name="f"), ToolChoice("tool", "f")),
        (block("custom", name="g"), ToolChoice("tool", "g", namespace="ns")),
        (block("function", name="f", namespace="ns"), ToolChoice("tool", "f", namespace="ns")),
        (block("function", name="ns__f"), ToolChoice("tool", "f", namespace="ns")),
        (block("apply_patch"), ToolChoice("tool", "apply_patch")),
        (among("required", block("function", name="f")), ToolChoice("any", allowed=["f"])),
        (
            among("auto", block("namespace", name="ns"), block("apply_patch"), HOSTED),
            ToolChoice("auto", allowed=["ns__f", "ns__g", "apply_patch"]),
        ),
        (among("auto", HOSTED), ToolChoice("none")),
    ],
}


def test_tool_choice_is_converted(cases: Cases) -> None:
    for api, rows in CHOICES.items():
        for choice, wanted in rows:
            with cases.case(api=api.name, choice=choice):
                found = api.read(tools=TOOLS[api], tool_choice=choice).tool_choice
                assert found == wanted
                fields: Json = {"parallel_tool_calls": False, "tool_choice": choice}
                if api is MESSAGES:
                    fields = {"tool_choice": choice | {"disable_parallel_tool_use": True}}
                single = api.read(tools=TOOLS[api], **fields).tool_choice
                assert single == msgspec.structs.replace(wanted, parallel=False)


HINTS = {"latency_sensitivity": 0.9, "osl": 300, "speculative_prefill": True, "strict_priority": 4}
BAD_HINTS: list[tuple[str, Json]] = [
    ("nvext.agent_hints.osl", {"nvext": {"agent_hints": {"priority": 1, "osl": -3}}}),
    ("nvext.agent_hints", {"nvext": {"agent_hints": [1]}}),
    ("priority", {"priority": 0.5}),
]


def test_hints_keep_their_values(cases: Cases) -> None:
    for api in APIS:
        with cases.case(api=api.name):
            asked = api.read(nvext={"agent_hints": HINTS, "annotations": []}, cache_salt="s")
            assert asked.hints == Hints(
                latency_sensitivity=0.9, osl=300, speculative_prefill=True, cache_salt="s"
            )
            assert api.read(priority=3).hints == Hints(priority=3)
            assert api.read(nvext={"agent_hints": {"priority": 3}}).hints == Hints(priority=3)


def test_hint_of_a_wrong_type_is_refused_by_its_name(cases: Cases) -> None:
    for api in APIS:
        for place, fields in BAD_HINTS:
            with cases.case(api=api.name, place=place):
                info = api.refusal(**fields)
                assert info.param == place
                assert place in info.message


def test_arguments_of_the_template_reach_the_conversation() -> None:
    for api in (CHAT, MESSAGES, RESPONSES):
        assert api.read(chat_template_kwargs={"x": False}).template_kwargs == {"x": False}
    both = CHAT.read(chat_template_args={"a": 1, "b": 1}, chat_template_kwargs={"b": 2})
    assert both.template_kwargs == {"a": 1, "b": 2}


def test_key_of_the_cache_is_a_session_where_no_header_names_one() -> None:
    for api in (CHAT, RESPONSES):
        assert api.read(prompt_cache_key="key").client.session == "key"
        asked = api.parse(
            api.body(prompt_cache_key="key"), {"session-id": "s1", "user-agent": "ua"}
        )
        client = asked.conversations[0].client
        assert (client.session, client.user_agent) == ("s1", "ua")
