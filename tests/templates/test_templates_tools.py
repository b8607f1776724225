"""A session's tools in all their forms, each made once."""

from typing import Any

import msgspec

from schemas.conversation import Grammar, ToolSpec
from services.families.bare_tools import bare
from services.templates.jinja import JsonDict
from services.templates.tools import SessionTools, list_tools, rendered_tool

SPECS = [
    ToolSpec("run", "Runs.", {"type": "object", "properties": {"n": {"type": "integer", "description": "how often"}}}),
    ToolSpec("patch", "Patches.", kind="custom", grammar=Grammar("lark", "start: x")),
    ToolSpec("find", "Finds.", namespace="files", deferred=True),
]


def parsed(tools: SessionTools) -> list[ToolSpec]:
    return msgspec.json.decode(tools.parser_json, type=list[ToolSpec])


def test_names_and_schemas_are_those_that_the_model_sees() -> None:
    tools = SessionTools.of(SPECS)
    assert tools == SPECS
    assert [tool.name for tool in tools.rendered] == ["run", "patch", "files__find"]
    assert tools.rendered == [rendered_tool(tool) for tool in SPECS]
    assert tools.rendered[1].schema["required"] == ["input"]
    assert [tool["function"]["name"] for tool in tools.definitions] == ["run", "patch"]
    assert tools.definitions == list_tools(SPECS)
    assert parsed(tools) == bare(tools.rendered)
    assert b"how often" not in tools.parser_json


def test_a_list_keeps_its_json() -> None:
    tools = SessionTools(SPECS)
    assert tools.definitions == list_tools(SPECS)
    assert tools.definitions is tools.definitions
    assert isinstance(tools.definitions[0], JsonDict)
    assert tools.parser_json is tools.parser_json


def test_forms_belong_to_the_list() -> None:
    tools = SessionTools.of(SPECS)
    assert SessionTools.of(tools) is tools
    assert tools.rendered is tools.rendered
    assert SessionTools.of(list(SPECS)) is not tools
    assert SessionTools().parser_json == b"[]"


def test_schemas_that_are_nested_deeper_than_functions_recurse() -> None:
    deep: Any = {}
    for _ in range(700):
        deep = {"a": deep}
    tools = SessionTools([ToolSpec("deep", schema=deep)])
    assert tools.definitions == list_tools(tools)
    assert parsed(tools) == list(tools)
