"""Outlines of tools' schemas: a library accepts each, and what fits the schema fits the outline."""

from typing import Any

import jsonschema
import llguidance
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import ToolSpec
from services.families import find_family
from services.guides.outline import outlined_tool, outlined_tools
from services.guides.turn import TurnForm, turn_grammar
from tests.guides.random_model import ByteTokenizer
from tests.kit.every import for_rows

TOKENIZER = ByteTokenizer(())
NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", "x" * 9])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(
    ["object", "array", "string", "integer", "number", "boolean", "null", "odd"]
)
NUMBERS = st.integers(-3, 5) | st.just(2**60) | st.just(0.5) | st.booleans()


def members(inner: Any) -> Any:
    """Schemas with keywords that clients send, fitting or not."""
    keywords = {
        "type": TYPES | st.lists(TYPES, max_size=2),
        "enum": st.lists(SCALARS, max_size=3),
        "const": SCALARS,
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "required": st.lists(NAMES, max_size=3) | st.just(7),
        "additionalProperties": st.booleans() | inner,
        "patternProperties": st.dictionaries(st.just("^x(?=y)"), inner, max_size=1),
        "items": inner | st.lists(inner, max_size=2),
        "prefixItems": st.lists(inner, max_size=2),
        "anyOf": st.lists(inner, max_size=2),
        "oneOf": st.lists(inner, max_size=2),
        "allOf": st.lists(inner, max_size=2),
        "not": inner,
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b", "#", "#/properties/a", "http://x/y"]),
        "pattern": st.sampled_from(["^a+$", "(?=a)b", "["]),
        "format": st.sampled_from(["uri", "odd"]),
        "nullable": st.booleans(),
    }
    limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    lengths = ("minLength", "maxLength", "minItems", "maxItems", "minProperties")
    keywords |= dict.fromkeys((*limits, *lengths), NUMBERS)
    return st.fixed_dictionaries({}, optional=keywords) | st.booleans()


PARTS = st.recursive(st.fixed_dictionaries({}, optional={"type": TYPES}), members, max_leaves=5)
SCHEMAS = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(NAMES, PARTS, max_size=3),
        "required": st.lists(NAMES, max_size=2),
        "additionalProperties": st.booleans(),
        "$defs": st.dictionaries(NAMES, PARTS, max_size=2),
    },
)


def outline(schema: Any, *, quoted: bool = True) -> Any:
    made = outlined_tool(ToolSpec("t", schema=schema), quoted=quoted)
    assert made.strict
    return made.schema


@given(SCHEMAS, st.sampled_from(["hermes", "qwen3_coder", "deepseek_v4"]))
def test_library_accepts_every_outline(schema: Any, name: str) -> None:
    tool = outlined_tool(ToolSpec("t", schema=schema), quoted=name == "hermes")
    grammar, _ = turn_grammar(TurnForm(tools=[tool]), find_family(name))
    lark = llguidance.LLMatcher.grammar_from_lark(grammar)
    matcher = llguidance.LLMatcher(TOKENIZER.library, lark)
    assert not matcher.is_error(), matcher.get_error()


@given(SCHEMAS, st.dictionaries(NAMES, VALUES, max_size=3))
def test_what_fits_a_schema_fits_its_outline(schema: Any, value: Any) -> None:
    try:
        jsonschema.Draft202012Validator(schema).validate(value)
    except Exception:  # also of schemas that are none
        return
    made = outline(schema)
    assert jsonschema.Draft202012Validator(made).is_valid(value), made


TYPICAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": "^/", "minLength": 1, "format": "path"},
        "mode": {"enum": ["r", "w"], "description": "How."},
        "lines": {"type": "integer", "minimum": 1, "maximum": 9_007_199_254_740_991},
        "edits": {"type": "array", "items": {"$ref": "#/$defs/edit"}, "minItems": 1},
        "at": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    },
    "required": ["path", "mode"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$defs": {"edit": {"type": "object", "properties": {"text": {}}, "required": ["text"]}},
}


@for_rows(
    [
        (True, "path", {"type": "string", "minLength": 1}),
        (False, "path", {"type": ["string"]}),
        (True, "mode", {"enum": ["r", "w"]}),
        (False, "mode", {"type": "string", "enum": ["r", "w"]}),
        (True, "lines", {"type": "integer", "minimum": 1, "maximum": 9_007_199_254_740_991}),
        (True, "edits", {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/edit"}}),
        (True, "at", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (False, "at", {"type": ["null", "string"]}),
    ]
)
def test_members_types_and_limits_stay(quoted: bool, member: str, part: dict[str, Any]) -> None:
    made = outline(TYPICAL, quoted=quoted)
    assert made["properties"][member] == part
    assert made["required"] == ["path", "mode"]
    assert made["additionalProperties"] is False
    assert made["$defs"] == TYPICAL["$defs"]


def test_strict_and_freeform_tools_stay() -> None:
    for tool in (
        ToolSpec("t", schema=TYPICAL, strict=True),
        ToolSpec("t", kind="custom", schema=TYPICAL),
    ):
        assert outlined_tool(tool, quoted=True) is tool


def test_schemas_beyond_the_room_of_a_grammar_are_left_out() -> None:
    big = {"type": "object", "properties": {"a": {"enum": [f"v{n}" * 4 for n in range(500)]}}}
    tools = [ToolSpec(f"t{n}", schema=big) for n in range(50)]
    made = outlined_tools(tools, quoted=True)
    count = sum(bool(tool.strict) for tool in made)
    assert 3 < count < 25
    assert [tool.strict for tool in made] == [True] * count + [None] * (50 - count)
    grammar, _ = turn_grammar(TurnForm(tools=made), find_family("hermes"))
    lark = llguidance.LLMatcher.grammar_from_lark(grammar)
    assert not llguidance.LLMatcher(TOKENIZER.library, lark).is_error()
