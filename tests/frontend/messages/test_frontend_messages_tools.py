"""Tests tools of every kind: custom, typed tools of the client, and tools that only Anthropic's
servers run."""

import json
from typing import Any

import pytest

from schemas.conversation import Conversation, ToolChoice
from schemas.errors import Invalid
from services.frontend.apis.messages.request import Messages, MessagesRequest, parse

CUSTOM = {"name": "look", "input_schema": {"type": "object"}}


def ask(*tools: dict[str, Any], **fields: Any) -> MessagesRequest:
    body = {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": tools,
        **fields,
    }
    return parse(json.dumps(body).encode(), {})


def told(*tools: dict[str, Any], **fields: Any) -> Conversation:
    return ask(*tools, **fields).conversation


@pytest.mark.parametrize(
    ("kind", "declared", "name", "required", "has"),
    [
        ("bash_20250124", "bash", "bash", [], {"command", "restart"}),
        (
            "text_editor_20250124",
            "str_replace_editor",
            "str_replace_editor",
            ["command"],
            {"command", "path", "old_str"},
        ),
        (
            "text_editor_20250728",
            "",
            "str_replace_based_edit_tool",
            ["command"],
            {"file_text", "insert_line", "insert_text", "view_range"},
        ),
        ("memory_20250818", "", "memory", ["command"], {"old_path", "new_path", "path"}),
    ],
)
def test_typed_client_tools_get_their_schema(
    kind: str, declared: str, name: str, required: list[str], has: set[str]
) -> None:
    tool = {"type": kind, "name": declared} if declared else {"type": kind}
    (spec,) = told(tool).tools
    assert spec.name == name
    assert spec.description
    assert spec.schema["required"] == required
    assert has <= set(spec.schema["properties"])


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_20250305",
        "web_search_20260318",
        "web_fetch_20250910",
        "code_execution_20250825",
        "tool_search_tool_bm25_20251119",
        "advisor_20260301",
        "mcp_toolset",
    ],
)
def test_hosted_tools_are_dropped_and_named(kind: str) -> None:
    asked = ask({"type": kind, "name": "x"}, CUSTOM)
    assert [tool.name for tool in asked.conversation.tools] == ["look"]
    assert asked.notes == [kind]


def test_claude_codes_web_search_call_is_served_without_the_tool() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    conversation = told(search, tool_choice={"type": "auto"})
    assert conversation.tools == []
    assert conversation.tool_choice == ToolChoice()


@pytest.mark.parametrize(
    ("choice", "beside"),
    [
        ({"type": "any"}, []),
        ({"type": "tool", "name": "web_search"}, []),
        ({"type": "tool", "name": "web_search"}, [CUSTOM]),
    ],
)
def test_hosted_tool_cannot_be_forced(choice: dict[str, str], beside: list[dict[str, Any]]) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(Invalid, match="this server does not run 'web_search'") as caught:
        told(search, *beside, tool_choice=choice)
    assert caught.value.info.param == "tool_choice"


def test_prompt_names_the_missing_tools() -> None:
    kinds = (
        "web_search_20250305",
        "code_execution_20250825",
        "tool_search_tool_bm25_20251119",
        "web_search_20260318",
    )
    (text,) = told(*({"type": kind, "name": "x"} for kind in kinds)).system
    assert text.text.startswith("Tools that were requested but are not available on this server: ")
    assert "server: web_search, code_execution. Where" in text.text
    assert told(CUSTOM).system == []


def test_deferred_tools_are_listed_without_a_search() -> None:
    deferred = {**CUSTOM, "defer_loading": True}
    assert told(deferred, {**CUSTOM, "name": "search"}).tools[0].deferred
    assert not told(deferred, {**deferred, "name": "other"}).tools[0].deferred
    assert (
        not told(deferred, {"type": "tool_search_tool_regex_20251119", "name": "t"})
        .tools[0]
        .deferred
    )


def test_limits_of_web_fetch_that_are_not_kept_are_refused() -> None:
    fetch = {"type": "web_fetch_20260318", "name": "web_fetch"}
    sources = {"user_input": {"type": "none"}}
    body = {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{**fetch, "url_sources": sources}],
    }
    assert Messages().parse(json.dumps(body).encode(), {}).notes == ["web_fetch_20260318"]
    with pytest.raises(Invalid) as refused:
        Messages(["web_fetch"]).parse(json.dumps(body).encode(), {})
    assert refused.value.info.param == "tools.0.url_sources"


def test_examples_are_part_of_the_description() -> None:
    (spec,) = told(
        {**CUSTOM, "description": "Looks.", "input_examples": [{"at": 1.0}, {"at": 2}]}
    ).tools
    assert spec.description == 'Looks.\n\nExamples of input:\n{"at": 1.0}\n{"at": 2}'


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"name": "x"}], "tools.0.custom.input_schema: Field required"),
        ([{"input_schema": {}}], "tools.0.custom.name: Field required"),
        ([CUSTOM, {**CUSTOM, "description": "again"}], "tools: Tool names must be unique."),
    ],
)
def test_invalid_request_is_refused(tools: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        told(*tools)
    assert caught.value.info.message == message


@pytest.mark.parametrize(
    "kind", ["computer_20250124", "computer_toolset_20260801", "browser_toolset_20260801", "x"]
)
def test_unknown_tool_type_is_refused(kind: str) -> None:
    with pytest.raises(
        Invalid, match=f"tools.1: Input tag '{kind}' found using 'type' does not match any"
    ):
        told(CUSTOM, {"type": kind, "name": "x"})
