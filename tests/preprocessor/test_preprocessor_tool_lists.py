"""Tools in all forms: made once for a list, and the same whether made before or not."""

from typing import Any

import msgspec

from schemas.conversation import Grammar, ToolSpec
from services.parser.tool_types import bare
from services.preprocessor.jinja_template import Spelled
from services.preprocessor.tool_lists import KEPT, ToolList, ToolLists

SPECS = [
    ToolSpec("run", "Runs.", {"type": "object", "properties": {"n": {"type": "integer", "description": "how often"}}}),
    ToolSpec("patch", "Patches.", kind="custom", grammar=Grammar("lark", "start: x")),
    ToolSpec("find", "Finds.", namespace="files", deferred=True),
]


def parsed(tools: ToolList) -> list[ToolSpec]:
    return msgspec.json.decode(tools.parsed, type=list[ToolSpec])


def test_all_forms() -> None:
    lists = ToolLists()
    first, second, third = (lists.of(SPECS) for _ in range(3))
    assert [tool.name for tool in first.told] == ["run", "patch", "files__find"]
    assert [tool["function"]["name"] for tool in first.shown] == ["run", "patch"]
    assert second.told == first.told
    assert second.shown == first.shown
    assert isinstance(second.shown[0], Spelled)
    assert third is second
    assert parsed(first) == first.told
    assert parsed(second) == bare(first.told)
    assert b"how often" not in second.parsed


def test_equal_lists_are_lists_of_their_own() -> None:
    lists = ToolLists()
    assert lists.of(SPECS).specs is SPECS
    other = list(SPECS)
    assert lists.of(other).specs is other
    assert lists.of([]).parsed == b"[]"


def test_a_list_whose_place_in_memory_another_takes() -> None:
    lists = ToolLists()
    for number in range(5 * KEPT):  # the lists die as soon as they are forgotten, and new ones get their ids
        for _ in range(1 + number % 3):
            fresh = [ToolSpec(f"tool{number}")]
            assert lists.of(fresh).told[0].name == f"tool{number}"
            assert lists.of(fresh).told[0].name == f"tool{number}"


def test_what_is_nested_deeper_than_functions_go() -> None:
    deep: Any = {}
    for _ in range(700):
        deep = {"a": deep}
    specs, lists = [ToolSpec("deep", schema=deep)], ToolLists()
    assert lists.of(specs).told == lists.of(specs).told
    assert parsed(lists.of(specs)) == specs
