"""Tests the fields of a Messages request that other APIs do not have, and tools of every kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import (
    Call,
    Client,
    Conversation,
    Message,
    Reasoning,
    Result,
    Text,
    Thinking,
    ToolReference,
    ToolSpec,
)
from schemas.errors import Invalid
from services.frontend.apis.messages.request import Messages
from tests.kit.bodies import (
    MESSAGES,
    SCHEMA,
    USER,
    Json,
    block,
    message,
    messages,
    parsed,
    text,
    tool,
    user,
)
from tests.kit.every import for_rows

FIXTURE = Path(__file__).parents[2] / "fixtures" / "messages" / "agent_turn.json"


def test_agent_request_keeps_the_order_of_everything() -> None:
    ask = MESSAGES.parse(FIXTURE.read_bytes(), {"user-agent": "claude-cli/2.1.328"})
    assert ask.stream
    assert ask.edits is not None
    assert ask.notes == []
    result = ask.conversation
    assert result.model == "acme/served-model"
    assert [text.text for text in result.system] == [
        "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=sdk-cli;",
        "You are an agent.",
    ]
    reminder = "<system-reminder>\nKeep commits small.\n</system-reminder>\n"
    pattern = '{"pattern": "old\\\\.flag", "limit": 5000.0, "id": 12345678901234567890}'
    missing = "<tool_use_error>no such file</tool_use_error>"
    assert result.messages == [
        Message("user", [Text(reminder), Text("Rename the flag in both files.")]),
        Message("system", [Text("# Environment\ncwd: /workspace\nDeferred tools: CronList")]),
        Message(
            "assistant",
            [
                Reasoning("Two files. First the parser.\n", "c2VhbGVkLTE="),
                Call("toolu_01A", "Grep", pattern),
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
        Message("tool", [Result("toolu_01C", [Text(missing)], is_error=True, name="Grep")]),
    ]
    assert [(tool.name, tool.deferred) for tool in result.tools] == [
        ("CronList", True),
        ("Grep", False),
        ("ToolSearch", False),
    ]
    members = ["$schema", "type", "properties", "required", "additionalProperties"]
    assert list(result.tools[1].schema) == members
    assert result.thinking == Thinking("adaptive", effort="high", history="keep")
    assert result.client == Client("11111111-2222-3333-4444-555555555555", "claude-cli/2.1.328")


def test_betas_count_thoughts_and_allow_large_budgets() -> None:
    betas = "thinking-token-count-2026-05-13,interleaved-thinking-2025-05-14"
    body = messages(thinking=block("enabled", budget_tokens=16384))
    thinking = MESSAGES.parse(body, {"anthropic-beta": betas}).conversation.thinking
    assert (thinking.count_tokens, thinking.budget_tokens) == (True, 16384)
    plain = MESSAGES.parse(messages(), {"anthropic-beta": "interleaved-thinking-2025-05-14"})
    assert not plain.conversation.thinking.count_tokens


def test_latest_system_message_sets_the_effort() -> None:
    result = MESSAGES.read(
        USER,
        message("system", "a", output_config={"effort": "medium"}),
        {"role": "system", "output_config": {"effort": "xhigh"}},
        output_config={"effort": "low"},
    )
    assert result.thinking.effort == "xhigh"
    assert len(result.messages) == 2


@for_rows(
    [
        ({"x-claude-code-session-id": "h"}, '{"session_id": "u"}', "h"),
        ({"x-claude-code-session-id": "h", "x-claude-code-agent-id": "a1"}, None, "h/a1"),
        ({"x-session-id": "ses_1"}, None, "ses_1"),
        ({}, '{"session_id": "u"}', "u"),
        ({}, "user_0a_account_11_session_22", "22"),
    ],
)
def test_session_is_read_from_headers_and_metadata(
    headers: dict[str, str], user_id: str | None, session: str | None
) -> None:
    asked = MESSAGES.parse(messages(metadata={"user_id": user_id}), headers)
    assert asked.conversation.client.session == session


def test_the_longest_lifetime_of_a_prefix_holds() -> None:
    def marked(ttl: str | None) -> dict[str, Any]:
        return text("x", cache_control=block("ephemeral", ttl=ttl))

    def seconds(*history: Any, **fields: Any) -> int:
        return MESSAGES.read(*history, **fields).hints.retain_s

    assert seconds(system=[marked(None)], cache_control=block("ephemeral")) == 0
    assert seconds(user(marked("5m")), system=[marked("1h")]) == 3600
    assert seconds(tools=[tool(cache_control=block("ephemeral", ttl="1h"))]) == 3600


def test_counting_accepts_unmatched_results_and_unsupported_features() -> None:
    piece = {"messages": [user(block("tool_result", tool_use_id="toolu_lost"))]}
    ask = Messages().parse_count(json.dumps(piece).encode(), {})
    assert ask.conversation.messages == [Message("tool", [Result("toolu_lost")])]
    assert ask.conversation.model == ""
    for unsupported in ({"mcp_servers": [block("url")]}, {"thread": block("create")}):
        body = json.dumps(messages(**unsupported)).encode()
        assert Messages().parse_count(body, {}).conversation == MESSAGES.read(), unsupported


def read(*tools: Json, **fields: Any) -> Conversation:
    return MESSAGES.read(tools=tools, **fields)


@for_rows(
    [
        ("bash_20250124", "bash", [], "command restart"),
        ("text_editor_20250124", "str_replace_editor", ["command"], "command path old_str"),
        ("memory_20250818", "memory", ["command"], "old_path new_path path"),
    ]
)
def test_typed_client_tools_get_their_schema(
    kind: str, name: str, required: list[str], has: str
) -> None:
    (spec,) = read(block(kind, name=name)).tools
    assert spec.name == name
    assert spec.description
    assert spec.schema["required"] == required
    assert {*has.split()} <= set(spec.schema["properties"])


def test_custom_tools_pass_through_with_their_examples() -> None:
    custom = tool(description="Looks.", strict=True, type="custom", eager_input_streaming=None)
    assert read(custom).tools == [ToolSpec("look", "Looks.", SCHEMA, strict=True)]
    (spec,) = read(tool(description="Looks.", input_examples=[{"at": 1.0}, {"at": 2}])).tools
    assert spec.description == 'Looks.\n\nExamples of input:\n{"at": 1.0}\n{"at": 2}'


def test_hosted_tools_are_left_out_and_named_in_notes_and_prompt() -> None:
    kinds = ["web_search_20250305", "web_fetch_20250910", "tool_search_tool_bm25_20251119"]
    asked = MESSAGES.ask(tools=[*(block(kind, name="x") for kind in kinds), tool()])
    assert [tool.name for tool in asked.conversation.tools] == ["look"]
    assert asked.notes == kinds
    (text,) = asked.conversation.system
    assert text.text.startswith("Tools that were requested but are not available on this server: ")
    assert "server: web_search, web_fetch" in text.text
    assert "tool_search" not in text.text
    assert read(tool()).system == []


def test_deferred_tools_are_listed_without_a_search() -> None:
    deferred = tool(defer_loading=True)
    search = block("tool_search_tool_regex_20251119", name="t")
    assert read(deferred, tool("search")).tools[0].deferred
    assert not read(deferred, tool("other", defer_loading=True)).tools[0].deferred
    assert not read(deferred, search).tools[0].deferred


def test_limits_of_web_fetch_that_are_not_kept_are_refused() -> None:
    sources = {"user_input": {"type": "none"}}
    fetch = block("web_fetch_20260318", name="web_fetch", url_sources=sources)
    body = json.dumps(messages(tools=[fetch])).encode()
    assert parsed(Messages(), body).notes == ["web_fetch_20260318"]
    with pytest.raises(Invalid) as refused:
        parsed(Messages(["web_fetch"]), body)
    assert refused.value.info.param == "tools.0.url_sources"
