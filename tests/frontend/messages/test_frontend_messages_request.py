"""Tests how the fields of a Messages request reach the conversation."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import (
    Call,
    Client,
    Conversation,
    Message,
    OutputFormat,
    Reasoning,
    Result,
    Sampling,
    Text,
    Thinking,
    ToolChoice,
    ToolReference,
    ToolSpec,
)
from schemas.errors import Invalid
from services.frontend.apis.messages.request import THREADS, parse

FIXTURE = Path(__file__).parents[2] / "fixtures" / "messages" / "agent_turn.json"
TOOL = {"name": "look", "input_schema": {"type": "object"}}


def conversation(headers: dict[str, str] | None = None, **fields: Any) -> Conversation:
    return parse(body(**fields), headers or {}).conversation


def body(**fields: Any) -> bytes:
    base = {"model": "m", "max_tokens": 4096, "messages": [{"role": "user", "content": "hi"}]}
    return json.dumps({**base, **fields}).encode()


def refusal(**fields: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse(body(**fields), {})
    return caught.value


def test_agent_request_keeps_the_order_of_everything() -> None:
    ask = parse(FIXTURE.read_bytes(), {"user-agent": "claude-cli/2.1.328"})
    assert ask.stream
    assert ask.edits is not None
    assert ask.notes == []
    result = ask.conversation
    assert result.model == "acme/served-model"
    assert [text.text for text in result.system] == [
        "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=sdk-cli;",
        "You are an agent.",
    ]
    assert result.messages == [
        Message(
            "user",
            [
                Text("<system-reminder>\nKeep commits small.\n</system-reminder>\n"),
                Text("Rename the flag in both files."),
            ],
        ),
        Message("system", [Text("# Environment\ncwd: /workspace\nDeferred tools: CronList")]),
        Message(
            "assistant",
            [
                Reasoning("Two files. First the parser.\n", "c2VhbGVkLTE="),
                Call(
                    "toolu_01A",
                    "Grep",
                    '{"pattern": "old\\\\.flag", "limit": 5000.0, "id": 12345678901234567890}',
                ),
                Reasoning(None, "b25seS1zZWFs"),
                Call("toolu_01B", "ToolSearch", '{"query": "select:CronList"}'),
            ],
        ),
        Message(
            "tool",
            [
                Result("toolu_01A", [Text("a.py:3\nb.py:9")], is_error=False, name="Grep"),
                Result(
                    "toolu_01B",
                    [ToolReference("CronList"), Text("Tool loaded.")],
                    name="ToolSearch",
                ),
            ],
        ),
        Message("user", [Text("Go on.")]),
        Message("system", [Text("The file a.py has changed on disk.")]),
        Message(
            "assistant",
            [
                Reasoning(None, "cmVkYWN0ZWQ="),
                Text("Editing both."),
                Call("toolu_01C", "Grep", "{}"),
            ],
        ),
        Message(
            "tool",
            [
                Result(
                    "toolu_01C",
                    [Text("<tool_use_error>no such file</tool_use_error>")],
                    is_error=True,
                    name="Grep",
                )
            ],
        ),
    ]
    assert [(tool.name, tool.deferred) for tool in result.tools] == [
        ("CronList", True),
        ("Grep", False),
        ("ToolSearch", False),
    ]
    assert list(result.tools[1].schema) == [
        "$schema",
        "type",
        "properties",
        "required",
        "additionalProperties",
    ]
    assert result.thinking == Thinking("adaptive", effort="high", history="keep")
    assert result.client == Client("11111111-2222-3333-4444-555555555555", "claude-cli/2.1.328")


def test_string_equals_a_text_block() -> None:
    as_blocks = conversation(
        system=[{"type": "text", "text": "be brief"}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "system", "content": [{"type": "text", "text": "now"}]},
        ],
    )
    as_strings = conversation(
        system="be brief",
        messages=[{"role": "user", "content": "hi"}, {"role": "system", "content": "now"}],
    )
    assert as_blocks == as_strings


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "disabled"}}, Thinking("disabled")),
        ({"thinking": {"type": "adaptive"}}, Thinking("adaptive")),
        ({"thinking": {"type": "between_tools"}}, Thinking("disabled")),
        ({"thinking": {"type": "adaptive", "budget_tokens": 2048}}, Thinking("adaptive", 2048)),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            Thinking("adaptive", display="omitted"),
        ),
        ({"thinking": {"type": "adaptive", "display": "updates"}}, Thinking("adaptive")),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, Thinking("enabled", 2048)),
        ({"output_config": {"effort": "max"}}, Thinking("disabled", effort="max")),
        ({"output_config": {"effort": None}}, Thinking()),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
            Thinking("disabled", effort="low"),
        ),
    ],
)
def test_thinking_settings_are_converted(fields: dict[str, Any], expected: Thinking) -> None:
    assert conversation(**fields).thinking == expected


@pytest.mark.parametrize("kind", ["enabled", "adaptive"])
def test_budget_below_the_native_least_is_refused(kind: str) -> None:
    with pytest.raises(
        Invalid,
        match=f"thinking.{kind}.budget_tokens: Input should be greater than or equal to 1024",
    ):
        conversation(thinking={"type": kind, "budget_tokens": 64})


def test_beta_counts_the_tokens_of_thoughts() -> None:
    asked = parse(body(), {"anthropic-beta": "a-2025-01-01,thinking-token-count-2026-05-13"})
    assert asked.conversation.thinking.count_tokens
    assert not parse(
        body(), {"anthropic-beta": "interleaved-thinking-2025-05-14"}
    ).conversation.thinking.count_tokens


def test_latest_system_message_sets_the_effort() -> None:
    result = conversation(
        output_config={"effort": "low"},
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "a", "output_config": {"effort": "medium"}},
            {"role": "system", "output_config": {"effort": "xhigh"}},
        ],
    )
    assert result.thinking.effort == "xhigh"
    assert len(result.messages) == 2


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any"}, ToolChoice("any")),
        ({"type": "none"}, ToolChoice("none")),
        (
            {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            ToolChoice("tool", "look", parallel=False),
        ),
    ],
)
def test_tool_choice_is_converted(choice: dict[str, Any], expected: ToolChoice) -> None:
    assert conversation(tools=[TOOL], tool_choice=choice).tool_choice == expected


def test_sampling_fields_and_extensions_are_read() -> None:
    result = conversation(
        temperature=1.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["\n\n", "END"],
        min_p=0.1,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.1,
        min_tokens=3,
        ignore_eos=True,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert result.sampling == Sampling(
        max_tokens=4096,
        min_tokens=3,
        temperature=1.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.1,
        stop=["\n\n", "END"],
        ignore_eos=True,
    )
    assert result.template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"output_format": {"type": "json_schema", "schema": {"type": "object"}}},
    ],
)
def test_output_format_is_converted(fields: dict[str, Any]) -> None:
    assert conversation(**fields).format == OutputFormat("json_schema", schema={"type": "object"})


@pytest.mark.parametrize(
    ("headers", "user_id", "session"),
    [
        ({"x-claude-code-session-id": "h"}, '{"session_id": "u"}', "h"),
        ({"x-claude-code-session-id": "h", "x-claude-code-agent-id": "a1"}, None, "h/a1"),
        ({"x-claude-code-agent-id": "a1"}, None, None),
        ({"x-session-id": "ses_1"}, None, "ses_1"),
        ({}, '{"session_id": "u"}', "u"),
        ({}, "user_0a_account_11_session_22", "22"),
        ({}, "session_33", "33"),
        ({}, "13803d75-b4b5-4c3e-b2a2-6f21399b021b", None),
        ({}, "[1, 2]", None),
        ({}, None, None),
    ],
)
def test_session_is_read_from_headers_and_metadata(
    headers: dict[str, str], user_id: str | None, session: str | None
) -> None:
    assert conversation(headers, metadata={"user_id": user_id}).client.session == session


def test_the_longest_lifetime_of_a_prefix_holds() -> None:
    def marked(ttl: str | None) -> dict[str, Any]:
        return {"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": ttl}}

    def seconds(**fields: Any) -> int:
        return conversation(**fields).hints.retain_s

    assert seconds(system=[marked(None)], cache_control={"type": "ephemeral"}) == 0
    assert (
        seconds(system=[marked("1h")], messages=[{"role": "user", "content": [marked("5m")]}])
        == 3600
    )
    assert seconds(messages=[{"role": "user", "content": [marked("5m"), marked(None)]}]) == 300
    tool = {
        "name": "t",
        "input_schema": {"type": "object", "properties": {"ttl": {"type": "string"}}},
    }
    assert seconds(tools=[tool]) == 0
    assert seconds(tools=[{**tool, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]) == 3600
    assert seconds(cache_control={"type": "ephemeral", "ttl": "5m"}) == 300


def test_fields_without_effect_are_skipped() -> None:
    plain = conversation()
    assert plain == conversation(
        cache_control={"type": "ephemeral"},
        service_tier="auto",
        speed="fast",
        inference_geo="eu",
        container=None,
        fallbacks="default",
        billing_policy={"type": "x"},
        thread=None,
        mcp_servers=[],
        something_new={"a": [1]},
    )


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
def test_thread_is_refused_with_the_code_of_the_sdk(thread: dict[str, str]) -> None:
    info = refusal(thread=thread).info
    assert info.code == THREADS == "thread_unsupported_request"
    assert info.details == {"unsupported": []}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: at least one message is required"),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers: not supported by this server"),
        ({"compaction": {"type": "summarize"}}, "compaction: not supported by this server"),
        ({"container": "container_1"}, "container: not supported by this server"),
        (
            {
                "container": {"id": "c"},
                "tools": [{"type": "code_execution_20250825", "name": "code_execution"}],
            },
            "container: not supported by this server",
        ),
        ({"stop_sequences": [""]}, "stop_sequences: each stop sequence must be non-empty"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 4096}},
            "`max_tokens` must be greater than `thinking.budget_tokens`.",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1023}},
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ),
        ({"thinking": {"type": "enabled"}}, "thinking.enabled.budget_tokens: Field required"),
        (
            {"tool_choice": {"type": "any"}},
            "tool_choice: may only be specified while providing tools.",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
            "tool_choice.tool.name: Tool 'other' not found in provided tools",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "any"},
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            },
            "Thinking may not be enabled when tool_choice forces tool use.",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "So "},
                ]
            },
            "messages: final assistant content cannot end with trailing whitespace",
        ),
    ],
)
def test_invalid_request_is_refused(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields).info.message == message


def test_container_without_code_execution_has_no_effect() -> None:
    skills = [{"skill_id": "pdf", "type": "anthropic", "version": "latest"}]
    assert conversation(container={"id": "id", "skills": skills}) == conversation()


def test_prewarm_generates_no_output() -> None:
    result = conversation(max_tokens=0, thinking={"type": "enabled", "budget_tokens": 1024})
    assert result.sampling.max_tokens == 0


def test_interleaved_budget_may_exceed_max_tokens() -> None:
    betas = {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
    allowed = conversation(betas, thinking={"type": "enabled", "budget_tokens": 16384})
    assert allowed.thinking.budget_tokens == 16384


def test_counting_accepts_unmatched_calls_and_results() -> None:
    piece = json.dumps(
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_lost"}]}
            ]
        }
    ).encode()
    ask = parse(piece, {}, counting=True)
    assert ask.conversation.messages == [Message("tool", [Result("toolu_lost")])]
    assert ask.conversation.model == ""


@pytest.mark.parametrize("field", ["mcp_servers", "compaction", "thread"])
def test_counting_accepts_unsupported_features(field: str) -> None:
    value: Any = [{"type": "url"}] if field == "mcp_servers" else {"type": "create"}
    assert parse(body(**{field: value}), {}, counting=True).conversation == conversation()


def test_custom_tools_pass_through() -> None:
    result = conversation(
        tools=[
            {
                **TOOL,
                "description": "Looks.",
                "strict": True,
                "type": "custom",
                "eager_input_streaming": None,
            }
        ]
    )
    assert result.tools == [ToolSpec("look", "Looks.", {"type": "object"}, strict=True)]
