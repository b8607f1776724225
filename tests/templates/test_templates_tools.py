"""The forms of a request's tools."""

import json
from typing import Any

import msgspec
import pytest

from schemas.conversation import Grammar, ToolSpec
from services.templates.json_values import JsonDict
from services.templates.tools import PromptTools, decode_json, list_tools, rendered_tool
from services.tokenization.data_marks import DataMarker
from tests.kit.every import for_each

SPECS = [
    ToolSpec(
        "run",
        "Runs.",
        {"type": "object", "properties": {"n": {"type": "integer", "description": "how often"}}},
    ),
    ToolSpec("patch", "Patches.", kind="custom", grammar=Grammar("lark", "start: x")),
    ToolSpec("find", "Finds.", namespace="files", deferred=True),
]


def forms_of(tools: list[ToolSpec], marker: DataMarker | None = None) -> PromptTools:
    return PromptTools.of(tools, msgspec.json.encode(tools), marker)


def test_names_and_schemas_are_those_that_the_model_sees() -> None:
    tools = forms_of(SPECS)
    assert [tool.name for tool in tools.specs] == ["run", "patch", "files__find"]
    assert tools.specs == [rendered_tool(tool) for tool in SPECS]
    assert tools.specs[1].schema["required"] == ["input"]
    assert [tool["function"]["name"] for tool in tools.definitions] == ["run", "patch"]
    assert tools.definitions == list_tools(SPECS)
    assert isinstance(tools.definitions[0], JsonDict)
    parsed = msgspec.json.decode(tools.parser_json, type=list[ToolSpec])
    assert [tool.name for tool in parsed] == ["run", "patch", "files__find"]
    assert parsed[0].schema == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert forms_of([]) == PromptTools()


def test_control_tokens_in_definitions_are_marked() -> None:
    marks = {letter: chr(0xE000 + ord(letter)) for letter in "<|im_end|>"}
    marker = DataMarker(["<|im_end|>"], marks, infixes=(), names=(), handled=())
    (tool,) = forms_of([ToolSpec("run", "a <|im_end|> b")], marker).definitions
    assert tool["function"]["description"] == marker.mark("a <|im_end|> b") != "a <|im_end|> b"


def test_too_deeply_nested_schemas_raise_recursion_error() -> None:
    deep: Any = {}
    for _ in range(700):
        deep = {"a": deep}
    specs = [ToolSpec("deep", schema=deep)]
    tools = forms_of(specs)
    assert tools.definitions == list_tools(specs)
    assert msgspec.json.decode(tools.parser_json, type=list[ToolSpec]) == specs
    for _ in range(20_000):
        deep = {"a": deep}
    with pytest.raises(RecursionError):
        forms_of([ToolSpec("deep", schema=deep)])


@for_each(
    [
        '{"a": 1.0, "b": [-0.0, 1e2, 12345678901234567890], "a": null}',
        '"caf\\u00e9 \\ud83d\\ude00 \\ud83d"',
        "[NaN, -Infinity]",
        "\ufeff{}",
        '"\x01"',
        "[1,]",
        "",
    ]
)
def test_json_is_read_as_pythons_module_reads_it(text: str) -> None:
    outcomes = []
    for decode in (decode_json, json.loads):
        try:
            outcomes.append(repr(decode(text)))
        except ValueError as error:
            outcomes.append(repr(error))
    assert outcomes[0] == outcomes[1]
