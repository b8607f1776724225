"""Tests the tools of a Messages request: typed, custom, hosted and deferred ones."""

import json
from typing import Any

import pytest

from schemas.conversation import Conversation, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.messages.request import Messages
from tests.kit.bodies import MESSAGES, SCHEMA, Json, block, messages, parsed, tool
from tests.kit.every import for_rows


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
