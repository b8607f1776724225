"""Tools without their words: every parser gives the same events with them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import families, open_parser
from services.families.bare_tools import reduced_json
from services.families.tool_types import types_of
from tests.kit.every import for_each
from tests.kit.parser_cases import fold, run, tools, vectors

WORDS = {
    "description": "What it is.",
    "title": "T",
    "examples": ["a"],
    "default": 1,
    "minLength": 1,
}


def reduced(specs: list[ToolSpec]) -> list[ToolSpec]:
    return msgspec.json.decode(reduced_json(specs), type=list[ToolSpec])


@for_each(list(families()))
def test_every_vector_gives_the_same_events_with_reduced_tools(family: str) -> None:
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
            for kept in (specs, reduced(specs))
        ]
        assert said[0] == said[1], case["case"]


def schemas() -> st.SearchStrategy[Any]:
    words = st.fixed_dictionaries(
        {}, optional={word: st.just(value) for word, value in WORDS.items()}
    )
    kinds = st.sampled_from(["string", "null", "integer", "number", "boolean", "object", "array"])
    leaf = st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, max_size=3),
            "nullable": st.booleans(),
            "enum": st.lists(st.sampled_from([None, 1, "x", True]), max_size=3),
            "const": st.sampled_from([None, 1, "x"]),
            "$ref": st.sampled_from(
                ["#/$defs/d", "#/definitions/d", "#/properties/description", "#/nowhere", "else"]
            ),
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

    both = st.recursive(
        leaf, lambda inner: st.builds(lambda a, b, w: {**w, **a, **b}, leaf, deeper(inner), words)
    )
    return st.builds(lambda schema, w: {**w, **schema}, both, words)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {}, "b": {"description": "{}"}}},
        {
            "properties": {"a": {"$ref": "#/x-types/a"}},
            "x-types": {"a": {"type": "integer"}},
            "title": "T",
        },
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/properties/b/items"}, "b": {"items": {"title": "T"}}},
        },
        {"type": "object", "$defs": {}, "definitions": {"d": {"default": {}}}},
    ],
)
def test_a_tool_that_cannot_be_reduced_stays_whole_and_others_do_not(
    schema: dict[str, Any],
) -> None:
    odd, other = reduced(
        [ToolSpec("f", "Words.", schema), ToolSpec("g", schema={**WORDS, "type": "object"})]
    )
    assert odd == ToolSpec("f", schema=schema)
    assert other == ToolSpec("g", schema={"type": "object"})


def test_odd_members_are_kept() -> None:
    schema = {
        "items": [{"type": "string"}],
        "properties": None,
        "anyOf": {"type": "null"},
        "additionalProperties": 1,
    }
    assert reduced([ToolSpec("f", "Words.", schema)]) == [ToolSpec("f", schema=schema)]


def test_schemas_deeper_than_the_decoders_limit_are_reduced() -> None:
    schema: dict[str, Any] = {"type": "string", "title": "T"}
    for _ in range(900):
        schema = {"items": schema}
    (kept,) = reduced([ToolSpec("f", "Words.", schema)])
    assert types_of(kept.schema, kept.schema) == {"array"}


@given(schemas())
def test_every_schema_tells_the_same_types(schema: dict[str, Any]) -> None:
    (tool,) = reduced([ToolSpec("f", "Words.", schema)])

    def compare(whole: Any, kept: Any) -> None:
        assert types_of(whole, schema) == types_of(kept, tool.schema)
        if isinstance(whole, dict):
            assert bool(whole) == bool(kept)
            assert [key in whole for key in ("items", "properties")] == [
                key in kept for key in ("items", "properties")
            ]
            for name, inner in (whole.get("properties") or {}).items():
                compare(inner, kept["properties"][name])
            for key in ("items", "additionalProperties"):
                if key in whole:
                    compare(whole[key], kept[key])

    compare(schema, tool.schema)


def test_descriptions_are_removed_and_properties_with_their_names_are_kept() -> None:
    schema = {
        **WORDS,
        "type": "object",
        "properties": {"description": {"type": "string", **WORDS}, "title": WORDS},
    }
    (tool,) = reduced([ToolSpec("f", "Words.", schema, strict=True)])
    assert tool == ToolSpec(
        "f",
        schema={
            "type": "object",
            "properties": {
                "description": {"type": "string"},
                "title": {"type": ["array", "object", "string"]},
            },
        },
    )
