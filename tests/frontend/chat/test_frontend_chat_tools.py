"""Tests the tools of a request of Chat Completions."""

from schemas.conversation import Grammar, ToolChoice, ToolSpec
from tests.kit.bodies import CHAT, SCHEMA, block, chat_tool

LOOK = chat_tool(description="Looks.")
SPEC = ToolSpec("look", "Looks.", SCHEMA)
GRAMMAR = block("grammar", grammar={"syntax": "lark", "definition": "start: /x/"})
PATCH = block("custom", custom={"name": "patch", "format": GRAMMAR})


def test_tools_are_converted() -> None:
    parameters = {"type": "object", "properties": {"b": {}, "a": {}}}
    plain = chat_tool("f", strict=True, parameters=parameters)
    asked = CHAT.ask(tools=[LOOK, PATCH, block("custom", custom={"name": "say"}), plain])
    assert asked.conversation.tools == [
        SPEC,
        ToolSpec("patch", kind="custom", grammar=Grammar("lark", "start: /x/")),
        ToolSpec("say", kind="custom"),
        ToolSpec("f", schema=parameters, strict=True),
    ]
    assert list(asked.conversation.tools[3].schema["properties"]) == ["b", "a"]
    assert asked.shape.freeform == {"patch", "say"}


def test_legacy_functions_are_tools() -> None:
    asked = CHAT.ask(functions=[LOOK["function"]], function_call={"name": "look"})
    assert asked.conversation.tools == [SPEC]
    assert asked.conversation.tool_choice == ToolChoice("tool", "look", parallel=False)
    assert asked.shape.legacy
    both = CHAT.ask(functions=[{"name": "look"}, {"name": "other"}], tools=[LOOK])
    assert [tool.name for tool in both.conversation.tools] == ["look", "other"]
    assert not both.shape.legacy
