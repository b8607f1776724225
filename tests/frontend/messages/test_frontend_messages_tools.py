"""Tests tools of every kind: custom, typed tools of the client, and tools that only Anthropic's
servers run."""

import json
from typing import Any

import pytest

from schemas.conversation import Conversation, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.messages.request import Messages
from tests.kit.bodies import MESSAGES, SCHEMA, block, messages, tool


def read(*tools: dict[str, Any], **fields: Any) -> Conversation:
    return MESSAGES.read(tools=tools, **fields)


@pytest.mark.parametrize(
    ("tool", "name", "required", "has"),
    [
        (block("bash_20250124", name="bash"), "bash", [], "command restart"),
        (
            block("text_editor_20250124", name="str_replace_editor"),
            "str_replace_editor",
            ["command"],
            "command path old_str",
        ),
        (
            block("text_editor_20250728"),
            "str_replace_based_edit_tool",
            ["command"],
            "file_text insert_line insert_text view_range",
        ),
        (block("memory_20250818"), "memory", ["command"], "old_path new_path path"),
    ],
)
def test_typed_client_tools_get_their_schema(
    tool: dict[str, Any], name: str, required: list[str], has: str
) -> None:
    (spec,) = read(tool).tools
    assert spec.name == name
    assert spec.description
    assert spec.schema["required"] == required
    assert {*has.split()} <= set(spec.schema["properties"])


def test_custom_tools_pass_through() -> None:
    custom = tool(description="Looks.", strict=True, type="custom", eager_input_streaming=None)
    assert read(custom).tools == [ToolSpec("look", "Looks.", SCHEMA, strict=True)]


def test_hosted_tools_are_dropped_and_named() -> None:
    for kind in (
        "web_search_20250305",
        "web_search_20260318",
        "web_fetch_20250910",
        "code_execution_20250825",
        "tool_search_tool_bm25_20251119",
        "advisor_20260301",
        "mcp_toolset",
    ):
        asked = MESSAGES.ask(tools=[block(kind, name="x"), tool()])
        assert [tool.name for tool in asked.conversation.tools] == ["look"]
        assert asked.notes == [kind]


def test_prompt_names_the_missing_tools() -> None:
    kinds = (
        "web_search_20250305",
        "code_execution_20250825",
        "tool_search_tool_bm25_20251119",
        "web_search_20260318",
    )
    (text,) = read(*(block(kind, name="x") for kind in kinds)).system
    assert text.text.startswith("Tools that were requested but are not available on this server: ")
    assert "server: web_search, code_execution. Where" in text.text
    assert read(tool()).system == []


def test_deferred_tools_are_listed_without_a_search() -> None:
    deferred = tool(defer_loading=True)
    search = block("tool_search_tool_regex_20251119", name="t")
    assert read(deferred, tool("search")).tools[0].deferred
    assert not read(deferred, tool("other", defer_loading=True)).tools[0].deferred
    assert not read(deferred, search).tools[0].deferred


def test_limits_of_web_fetch_that_are_not_kept_are_refused() -> None:
    fetch = block(
        "web_fetch_20260318", name="web_fetch", url_sources={"user_input": {"type": "none"}}
    )
    body = json.dumps(messages(tools=[fetch])).encode()
    assert Messages().parse(body, {}).notes == ["web_fetch_20260318"]
    with pytest.raises(Invalid) as refused:
        Messages(["web_fetch"]).parse(body, {})
    assert refused.value.info.param == "tools.0.url_sources"


def test_examples_are_part_of_the_description() -> None:
    (spec,) = read(tool(description="Looks.", input_examples=[{"at": 1.0}, {"at": 2}])).tools
    assert spec.description == 'Looks.\n\nExamples of input:\n{"at": 1.0}\n{"at": 2}'
