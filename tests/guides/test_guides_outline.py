"""Outlines of tools' schemas: a library accepts each, and what fits the schema fits the outline."""

import time
from typing import Any

import jsonschema
import llguidance
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import Conversation, ToolSpec
from services.families import find_family
from services.guides.outline import outlined_tool, outlined_tools
from services.guides.promises import GRAMMAR, not_enforced
from services.guides.turn_grammar import TurnForm, turn_grammar
from tests.guides.random_model import ByteTokenizer
from tests.kit.every import for_each, for_rows

TOKENIZER = ByteTokenizer(())
OWN_NOTATION = ["gemma4", "minimax_m3", "pythonic"]
NAMES = st.sampled_from(["a", "b c", "List<é|[x]>"])
ODD_NAMES = NAMES | st.sampled_from(["type", "item", "invoke", "a/b", "%20", "\\", '"', ""])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", "x" * 9])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
REFERENCES = [
    *("#/$defs/a", "#/$defs/b c", "#/definitions/List<é|[x]>", "#/$defs/a~1b"),
    *("#", "#/properties/a", "http://x/y"),
]
TYPES = st.sampled_from(
    ["object", "array", "string", "integer", "number", "boolean", "null", "odd"]
)
NUMBERS = st.integers(-3, 5) | st.just(2**60) | st.just(0.5) | st.booleans()


def spoiled(schema: dict[str, Any]) -> Any:
    """A schema with any value for some of its keywords."""
    return st.fixed_dictionaries({key: st.just(value) | VALUES for key, value in schema.items()})


def schemas(inner: Any, names: Any) -> Any:
    """Schemas with keywords that clients send, fitting or not."""
    keywords = {
        "type": TYPES | st.lists(TYPES, max_size=2),
        "enum": st.lists(VALUES, max_size=3),
        "const": VALUES,
        "properties": st.dictionaries(names, inner, max_size=3),
        "required": st.lists(names, max_size=3),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(st.just("^x(?=y)"), inner, max_size=1),
        "items": inner | st.lists(inner, max_size=2),
        "prefixItems": st.lists(inner, max_size=2),
        "anyOf": st.lists(inner, max_size=2),
        "oneOf": st.lists(inner, max_size=2),
        "allOf": st.lists(inner, max_size=2),
        "not": inner,
        "$ref": st.sampled_from(REFERENCES),
        "$defs": st.dictionaries(names, inner, max_size=2),
        "definitions": st.dictionaries(names, inner, max_size=2),
        "pattern": st.sampled_from(["^a+$", "(?=a)b", "["]),
        "format": st.sampled_from(["uri", "odd"]),
        "nullable": st.booleans(),
    }
    limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    lengths = ("minLength", "maxLength", "minItems", "maxItems", "minProperties")
    keywords |= dict.fromkeys((*limits, *lengths), NUMBERS)
    return st.fixed_dictionaries({}, optional=keywords).map(with_type)


def with_type(schema: dict[str, Any]) -> dict[str, Any]:
    """States what everyone means who lists members."""
    return {"type": "object", **schema} if "properties" in schema else schema


PARTS = st.recursive(
    st.booleans() | schemas(st.booleans(), NAMES), lambda inner: schemas(inner, NAMES), max_leaves=5
)
SCHEMAS = schemas(PARTS, NAMES).map(lambda schema: {**schema, "type": "object"})
ANYTHING = st.recursive(
    SCALARS | TYPES | st.sampled_from(REFERENCES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(ODD_NAMES, inner, max_size=3)
        | schemas(inner, ODD_NAMES)
        | schemas(inner, ODD_NAMES).flatmap(spoiled)
    ),
    max_leaves=12,
)
ODD = schemas(ANYTHING, ODD_NAMES).flatmap(spoiled)
"""Any JSON in the place of schemas."""


def outline(schema: Any, *, quoted: bool = True) -> Any:
    made = outlined_tool(ToolSpec("t", schema=schema), quoted=quoted)
    assert made.strict
    return made.schema


def compiles(form: TurnForm, name: str) -> None:
    grammar, _ = turn_grammar(form, find_family(name))
    lark = llguidance.LLMatcher.grammar_from_lark(grammar)
    matcher = llguidance.LLMatcher(TOKENIZER.library, lark)
    assert not matcher.is_error(), matcher.get_error()


@given(SCHEMAS | ODD, st.sampled_from(["hermes", "qwen3_coder", "deepseek_v4", *OWN_NOTATION]))
def test_any_json_as_a_schema_is_guided(schema: Any, name: str) -> None:
    tool = ToolSpec("t", schema=schema)
    strict = replace(tool, strict=True)
    lost = not_enforced(Conversation("m", [], tools=[strict]), [GRAMMAR], name)
    assert lost in ([], ["strict"])
    compiles(TurnForm(tools=[tool]), name)
    compiles(TurnForm(tools=[outlined_tool(tool, quoted=name == "hermes")]), name)
    if name in OWN_NOTATION:
        compiles(TurnForm(tools=[strict]), name)


@for_each(["hermes", "qwen3_coder", *OWN_NOTATION])
def test_definitions_that_share_others_take_no_time(name: str) -> None:
    """A schema of 60 references, and 2 to the power of 30 paths."""
    parts: dict[str, Any] = {"d30": {"type": "string"}}
    for level in range(30):
        inner = {"$ref": f"#/$defs/d{level + 1}"}
        parts[f"d{level}"] = {"type": "object", "properties": {"x": inner, "y": inner}}
    schema = {"type": "object", "properties": {"p": {"$ref": "#/$defs/d0"}}, "$defs": parts}
    tool = ToolSpec("t", schema=schema)
    begun = time.thread_time()
    for form in (tool, replace(tool, strict=True), outlined_tool(tool, quoted=name == "hermes")):
        turn_grammar(TurnForm(tools=[form]), find_family(name))
    assert time.thread_time() - begun < 0.5


@for_each(["hermes", "qwen3_coder", *OWN_NOTATION])
def test_schema_with_many_members_is_guided(name: str) -> None:
    properties = {f"a{n}": {"type": ["integer", "null"]} for n in range(500)}
    for required in ([], list(properties)[::7]):
        schema = {"type": "object", "properties": properties, "required": required}
        tool = outlined_tool(ToolSpec("t", schema=schema), quoted=name == "hermes")
        compiles(TurnForm(tools=[tool]), name)


def test_schema_that_is_nested_too_deeply_has_syntax() -> None:
    schema: Any = {"type": "string"}
    for _ in range(900):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = ToolSpec("t", schema=schema)
    assert outlined_tool(tool, quoted=True) is tool
    strict = Conversation("m", [], tools=[replace(tool, strict=True)])
    for name in ("hermes", "qwen3_coder", *OWN_NOTATION):
        assert not_enforced(strict, [GRAMMAR], name) == ["strict"]
        compiles(TurnForm(tools=strict.tools), name)


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
        (True, "path", {"type": "string"}),
        (False, "path", {"type": ["string"]}),
        (True, "mode", {"enum": ["r", "w"]}),
        (False, "mode", {"type": "string", "enum": ["r", "w"]}),
        (True, "lines", {"type": "integer"}),
        (True, "edits", {"type": "array", "items": {"$ref": "#/$defs/d0"}}),
        (True, "at", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (False, "at", {"type": ["null", "string"]}),
    ]
)
def test_members_and_types_stay(quoted: bool, member: str, part: dict[str, Any]) -> None:
    made = outline(TYPICAL, quoted=quoted)
    assert made["properties"][member] == part
    assert made["required"] == ["path", "mode"]
    assert made["additionalProperties"] is False
    assert made["$defs"] == {"d0": TYPICAL["$defs"]["edit"]}


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
    assert 1 < count < 10
    assert [tool.strict for tool in made] == [True] * count + [None] * (50 - count)
    grammar, _ = turn_grammar(TurnForm(tools=made), find_family("hermes"))
    lark = llguidance.LLMatcher.grammar_from_lark(grammar)
    assert not llguidance.LLMatcher(TOKENIZER.library, lark).is_error()
