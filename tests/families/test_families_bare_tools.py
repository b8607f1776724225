"""Tools without their words: every parser gives the same events with them."""

from typing import Any

import msgspec
import pytest

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import families, open_parser
from services.families.bare_tools import reduced_json
from tests.kit.every import for_each
from tests.kit.parser_cases import fold, opened, run, tools, vectors

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
        reasoning = case["prompt_ends_in_reasoning"]
        parser = open_parser(family, tools=reduced(specs), in_reasoning=reasoning)
        whole = fold(run(opened(case), [case["raw"]], reason))
        assert fold(run(parser, [case["raw"]], reason)) == whole, case["case"]


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


def test_descriptions_are_removed_and_properties_with_their_names_are_kept() -> None:
    schema = {
        **WORDS,
        "type": "object",
        "properties": {"description": {"type": "string", **WORDS}, "title": WORDS},
        "enum": [None, "a"],
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
            "enum": [None, "a"],
        },
    )
