"""Tests how the fields that several APIs have reach the conversation: sampling, thinking, formats,
tool choice, hints."""

from typing import Any, get_args, get_type_hints

import msgspec

from schemas.conversation import Hints, OutputFormat, Sampling, Thinking, ToolChoice
from services.frontend.apis.shared.sampling_fields import SamplingFields
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
    (CHAT, {"max_tokens": 9, "max_completion_tokens": 7}, Sampling(max_tokens=7)),
    (CHAT, {"stop": ["a", "b", 17]}, Sampling(stop=["a", "b"], stop_token_ids=[17])),
    (CHAT, {"seed": 2**70 + 5}, Sampling(seed=5)),
    (
        CHAT,
        {"logit_bias": {"50": 101, "7": -1.5, "foo": 0}},
        Sampling(logit_bias={50: 100, 7: -1.5}),
    ),
    (COMPLETIONS, {}, Sampling(max_tokens=16)),
    (COMPLETIONS, {"logprobs": 5, "stop": ["x"]}, Sampling(max_tokens=16, logprobs=5, stop=["x"])),
    (MESSAGES, {}, Sampling(max_tokens=4096)),
    (
        RESPONSES,
        {"include": ["message.output_text.logprobs"], "top_logprobs": 4},
        Sampling(logprobs=4),
    ),
    (RESPONSES, {"generate": False}, Sampling(max_tokens=0)),
]


def test_sampling_fields_reach_the_conversation(cases: Cases) -> None:
    for api, fields, wanted in SAMPLING:
        with cases.case(api=api.name, fields=fields):
            assert api.read(**fields).sampling == wanted


THINKING: dict[Api, list[tuple[Json, Thinking]]] = {
    CHAT: [
        ({}, Thinking()),
        ({"reasoning_effort": "high"}, Thinking("adaptive", effort="high")),
        ({"reasoning_effort": "none"}, Thinking("disabled", effort="none")),
        ({"thinking": False}, Thinking("disabled")),
        ({"enable_thinking": True, "thinking_budget": 99}, Thinking("enabled", 99)),
        ({"thinking_budget": 0}, Thinking("disabled", 0)),
    ],
    MESSAGES: [
        ({}, Thinking()),
        (
            {"thinking": block("adaptive", display="omitted")},
            Thinking("adaptive", display="omitted"),
        ),
        ({"thinking": block("enabled", budget_tokens=2048)}, Thinking("enabled", 2048)),
        ({"output_config": {"effort": "max"}}, Thinking("disabled", effort="max")),
    ],
    RESPONSES: [
        ({"reasoning": {"effort": "none"}}, Thinking("disabled", effort="none")),
        ({"reasoning": {"max_tokens": 64, "effort": "low"}}, Thinking("enabled", 64, "low")),
        (
            {"reasoning": {"effort": "max", "context": "all_turns"}},
            Thinking("enabled", effort="max", history="keep"),
        ),
        ({"reasoning": {"context": "current_turn", "mode": "pro"}}, Thinking(history="drop")),
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
FORMATS: list[tuple[Api, Json, OutputFormat]] = [
    (
        CHAT,
        {"response_format": block("json_schema", json_schema=NAMED)},
        OutputFormat("json_schema", PLAN, "n", True),
    ),
    (CHAT, {"response_format": block("json_object")}, OutputFormat("json_object")),
    (CHAT, {"guided_json": msgspec.json.encode(PLAN).decode()}, AS_PLAN),
    (CHAT, {"structured_outputs": {"json": PLAN}}, AS_PLAN),
    (MESSAGES, {"output_config": {"format": block("json_schema", schema=PLAN)}}, AS_PLAN),
    (MESSAGES, {"output_format": block("json_schema", schema=PLAN)}, AS_PLAN),
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
            assert found is not None
            if found.schema is not None:
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
        (LOOK_CHOICE, ToolChoice("tool", "look")),
        (allowed("required", PATCH_CHOICE), ToolChoice("any", allowed=["patch"])),
        (allowed("auto"), ToolChoice("none")),
    ],
    MESSAGES: [
        (block("any"), ToolChoice("any")),
        (block("none"), ToolChoice("none")),
        (block("tool", name="look"), ToolChoice("tool", "look")),
    ],
    RESPONSES: [
        ("required", ToolChoice("any")),
        (block("custom", name="g"), ToolChoice("tool", "g", namespace="ns")),
        (block("function", name="ns__f"), ToolChoice("tool", "f", namespace="ns")),
        (among("required", block("function", name="f")), ToolChoice("any", allowed=["f"])),
        (
            among("auto", block("namespace", name="ns"), block("apply_patch"), HOSTED),
            ToolChoice("auto", allowed=["ns__f", "ns__g", "apply_patch"]),
        ),
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


def test_hints_keep_their_values_or_are_refused_by_their_name(cases: Cases) -> None:
    wanted = Hints(latency_sensitivity=0.9, osl=300, speculative_prefill=True, cache_salt="s")
    for api in APIS:
        with cases.case(api=api.name):
            assert api.read(nvext={"agent_hints": HINTS}, cache_salt="s").hints == wanted
            assert api.read(priority=3).hints == Hints(priority=3)
            assert api.read(nvext={"agent_hints": {"priority": 3}}).hints == Hints(priority=3)
            info = api.refusal(nvext={"agent_hints": {"priority": 1, "osl": -3}})
            assert info.param == "nvext.agent_hints.osl"
            assert "nvext.agent_hints.osl" in info.message


def test_template_arguments_and_cache_key_reach_the_conversation() -> None:
    for api in (CHAT, MESSAGES, RESPONSES):
        assert api.read(chat_template_kwargs={"x": False}).template_kwargs == {"x": False}
    both = CHAT.read(chat_template_args={"a": 1, "b": 1}, chat_template_kwargs={"b": 2})
    assert both.template_kwargs == {"a": 1, "b": 2}
    for api in (CHAT, RESPONSES):
        assert api.read(prompt_cache_key="key").client.session == "key"
        headers = {"session-id": "s1", "user-agent": "ua"}
        client = api.parse(api.body(prompt_cache_key="key"), headers).conversations[0].client
        assert (client.session, client.user_agent) == ("s1", "ua")
