"""Tools as parsers need them: their names, the types of their arguments, and nothing of their descriptions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import families, open_parser
from services.families.tool_types import CONTAINERS, STRING, Tools, bare, resolved, types_of
from tests.families.parser_cases import fold, run, tools, vectors

ROOT = {
    "$defs": {
        "Level": {"enum": ["low", "high"]},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Deep": {"anyOf": [{"$ref": "#/$defs/Deep"}] * 6},
    }
}
WORDS = {"description": "What it is.", "title": "T", "examples": ["a"], "default": 1, "minLength": 1}


@pytest.mark.parametrize("family", list(families()))
def test_every_vector_says_the_same(family: str) -> None:
    for case in vectors(family):
        specs, reason = tools(case), FinishReason(case["finish_reason"])
        said = [
            fold(
                run(
                    open_parser(family, tools=kept, in_reasoning=case["prompt_ends_in_reasoning"]),
                    [case["raw"]],
                    reason,
                )
            )
            for kept in (specs, bare(specs))
        ]
        assert said[0] == said[1], case["case"]


def schemas() -> st.SearchStrategy[Any]:
    words = st.fixed_dictionaries({}, optional={word: st.just(value) for word, value in WORDS.items()})
    kinds = st.sampled_from(["string", "null", "integer", "number", "boolean", "object", "array"])
    leaf = st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, max_size=3),
            "enum": st.lists(st.sampled_from([None, 1, "x", True]), max_size=3),
            "const": st.sampled_from([None, 1, "x"]),
            "$ref": st.sampled_from(["#/$defs/d", "#/definitions/d", "#/properties/description", "#/nowhere", "else"]),
        },
    )
    names = st.sampled_from(["description", "title", "type", "a"])

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(names, inner, max_size=3),
                "$defs": st.dictionaries(st.just("d"), inner, max_size=1),
                "definitions": st.dictionaries(st.just("d"), inner, max_size=1),
                "items": inner,
                "additionalProperties": inner | st.booleans(),
                **{union: st.lists(inner, max_size=2) for union in ("anyOf", "oneOf", "allOf")},
            },
        )

    both = st.recursive(leaf, lambda inner: st.builds(lambda a, b, w: {**w, **a, **b}, leaf, deeper(inner), words))
    return st.builds(lambda schema, w: {**w, **schema}, both, words)


@given(schemas())
def test_every_schema_tells_the_same_types(schema: dict[str, Any]) -> None:
    (tool,) = bare([ToolSpec("f", "Words.", schema)])

    def compare(whole: Any, kept: Any) -> None:
        assert types_of(whole, schema) == types_of(kept, tool.schema)
        if isinstance(whole, dict):
            assert bool(whole) == bool(kept)
            assert [key in whole for key in ("items", "properties")] == [key in kept for key in ("items", "properties")]
            for name, inner in (whole.get("properties") or {}).items():
                compare(inner, kept["properties"][name])
            for key in ("items", "additionalProperties"):
                if key in whole:
                    compare(whole[key], kept[key])

    compare(schema, tool.schema)


def test_words_are_gone_and_properties_of_their_names_are_not() -> None:
    schema = {**WORDS, "type": "object", "properties": {"description": {"type": "string", **WORDS}, "title": WORDS}}
    (tool,) = bare([ToolSpec("f", "Words.", schema, strict=True)])
    assert tool == ToolSpec(
        "f",
        schema={
            "type": "object",
            "properties": {"description": {"type": "string"}, "title": {"type": ["array", "object", "string"]}},
        },
    )


def test_a_reference_into_what_would_be_left_out_keeps_the_whole_schema() -> None:
    schema = {"properties": {"a": {"$ref": "#/x-types/a"}}, "x-types": {"a": {"type": "integer"}}, "title": "T"}
    assert bare([ToolSpec("f", schema=schema)])[0].schema == schema


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None, True]}, {"string", "integer", "null", "boolean"}),
        ({"const": 1.5}, {"number"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"type": "string"}, {"anyOf": [{"type": "array"}]}]}, {"string", "array"}),
        ({"$ref": "#/$defs/Level"}, {"string"}),
        ({"allOf": [{"$ref": "#/$defs/Level"}]}, {"string"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"description": "anything"}, set(CONTAINERS)),
        ({"$ref": "#/$defs/Loop"}, set(CONTAINERS)),
        ({"$ref": "elsewhere.json"}, set(CONTAINERS)),
        ({"type": []}, {"string"}),
        ({"type": 3}, set(CONTAINERS)),
        (True, set(CONTAINERS)),
        (None, set(CONTAINERS)),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


def test_a_schema_that_contains_itself_ends() -> None:
    assert types_of({"$ref": "#/$defs/Deep"}, ROOT)
    assert resolved({"$ref": "#/$defs/Loop"}, ROOT) == {}


def test_tools_know_their_parameters() -> None:
    schema = {"$defs": {"N": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/N"}, "s": {"type": "string"}}}
    tools = Tools([ToolSpec("f", schema=schema), ToolSpec("g")])
    assert tools.types("f", "n") == {"integer"}
    assert tools.types("f", "other") == tools.types("g", "n") == tools.types("unknown", "n") == STRING
    assert list(tools.parameters("f")) == ["n", "s"]
    assert tools.parameters("g") == tools.parameters("unknown") == {}
    assert "f" in tools
    assert "x" not in tools
    assert not Tools()


@pytest.mark.parametrize(
    ("written", "namespaces", "name"),
    [
        ("ping", (), "ping"),
        ("functions.ping", ("functions.",), "ping"),
        ("functions.other", ("functions.",), "other"),
        ("functions.", ("functions.",), "functions."),
        ("functions.ping", (), "functions.ping"),
        ("ping.ping", (), "ping"),
        ("x.ping", (), "x.ping"),
        ("x.ping", ("functions.",), "ping"),
        ("mcp.read", ("functions.",), "mcp.read"),
        ("other.other", (), "other.other"),
    ],
)
def test_names_are_mapped_to_registered_ones(written: str, namespaces: tuple[str, ...], name: str) -> None:
    assert Tools([ToolSpec("ping"), ToolSpec("mcp.read")]).named(written, namespaces) == name
