"""Tests the fields of a Messages request that other APIs do not have."""

import json
from pathlib import Path
from typing import Any

from schemas.conversation import (
    Call,
    Client,
    Message,
    Reasoning,
    Result,
    Text,
    Thinking,
    ToolReference,
)
from services.frontend.apis.messages.request import Messages
from tests.kit.bodies import MESSAGES, USER, block, message, messages, text, tool, user
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
