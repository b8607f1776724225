"""The family's parser reads valid calls from what a random model writes under a turn's grammar."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest

from schemas.conversation import Grammar, OutputFormat, ToolSpec
from services.families import Family, families, find_family
from services.families.response_template import template_name
from services.guides.turn_grammar import TurnForm, turn_grammar
from services.guides.writer import Unguidable
from tests.guides.random_model import PATCH, ByteTokenizer, RandomModel, calls_of, may_stay_open
from tests.kit.every import for_each, for_rows
from tests.kit.response_templates import OWN

KIND = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "units": {"type": "string", "enum": ["c", "f"]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "type": {"$ref": "#/$defs/kind"},
    "note": {"type": ["string", "null"]},
}
STRICT: dict[str, Any] = {
    "type": "object",
    "properties": PROPERTIES,
    "required": [*PROPERTIES],
    "additionalProperties": False,
    "$defs": {"kind": KIND},
}
LOOSE: dict[str, Any] = {
    **STRICT,
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": "string"},
        "tags": {"type": "array"},
        "type": {"type": "object"},
        "note": {"type": ["string", "null"]},
    },
}
"""What is left of it in a notation of its own."""
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
WORD = Grammar("regex", r'^[a-z"\\]+ [0-9]{2}$')
FREE = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "object"}}}
TOOLS = [
    ToolSpec("weather", schema=STRICT, strict=True),
    ToolSpec("free", schema=FREE),
    ToolSpec("apply_patch", kind="custom", schema=INPUT, grammar=Grammar("lark", PATCH)),
    ToolSpec("word", kind="custom", schema=INPUT, grammar=WORD),
    ToolSpec("text", kind="custom", schema=INPUT),
]
MOOD = {"mood": {"enum": ["calm", "rough"]}}
ANSWER = {"type": "object", "properties": MOOD, "required": ["mood"], "additionalProperties": False}
FORM = OutputFormat("json_schema", ANSWER)
UNHELD = {"beam", "deepseek_r1", "kimi_thinking", "llama3_json", "muse_glimmer", "plain", "xlam"}
"""The families of docs/guided-turns.md without a grammar for calls."""
OWN_NOTATION = {
    *("functiongemma", "gemma4", "lfm2", "llama4_pythonic", "minimax_m3", "olmo3", "pythonic"),
}
"""Families with types of arguments only, and without grammars for the input of freeform tools."""
QUICK = ("qwen3_coder", "gpt_oss", "gemma4")
HELD = [*QUICK, template_name(json.dumps(OWN["renamed"]))]
PATCHES = ByteTokenizer(())


def check_call(found: Family, name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name in ("apply_patch", "word") and found.name in OWN_NOTATION:
        name = "text"
    assert name in {tool.name for tool in TOOLS}
    if name == "weather":
        jsonschema.validate(value, LOOSE if found.name in OWN_NOTATION else STRICT)
    elif name == "apply_patch":
        assert PATCHES.accepts(PATCH, value["input"]), value
    elif name == "word":
        assert re.fullmatch(r'[a-z"\\]+ [0-9]{2}', value["input"]), value
    elif name == "text":
        assert list(value) == ["input"]


def snippets(found: Family) -> list[str]:
    """What brings a random model into calls, and into what could be taken for one."""
    style = found.style
    patch = "*** Begin Patch\n*** Delete File: a\n*** End Patch"
    given = {"city": "x", "tags": ["a"]}
    pieces = [style.call.partition("{")[0], style.call.rpartition("}")[2], style.joint]
    pieces += [*(style.write_call(tool.name, given) for tool in TOOLS), *(found.think or ())]
    pieces += [getattr(style.arguments, "template", "").partition("{value}")[2]]
    pieces += [patch, json.dumps({"input": patch}), '"}', "</", '{"mood": "calm"}']
    return [piece for piece in pieces if piece]


def turns(
    name: str, special: bool, form: TurnForm, seeds: Sequence[int]
) -> Iterator[tuple[Family, str, bool, list[tuple[str, str, bool]], str]]:
    found = find_family(name)
    tokenizer = ByteTokenizer([*dict.fromkeys((*found.markers, *found.stops))] if special else ())
    model = RandomModel(tokenizer, turn_grammar(form, found, tokenizer.tokens)[0])
    for seed in seeds:
        text, ended = model.write(random.Random(seed), snippets(found))
        calls, prose = calls_of(
            found, form.tools, text, ended=ended, in_reasoning=form.in_reasoning, prefix=form.prefix
        )
        open_calls = [
            called for called, _, complete in calls[: None if ended else -1] if not complete
        ]
        # Without `strict`, a text in place of an object leaves its call open.
        if open_calls and open_calls[0] != "free":
            assert may_stay_open(found, f"{form.prefix}{text}", len(calls)), (text, calls)
        if open_calls:
            continue
        for called, arguments, complete in calls:
            if complete:
                check_call(found, called, arguments)
        yield found, text, ended, calls, prose


def check_free_text(name: str, special: bool) -> None:
    """Every call in free text is valid."""
    called = [calls for *_, calls, _ in turns(name, special, TurnForm(tools=TOOLS), range(6))]
    assert sum(map(len, called)) >= 1


def check_open_reasoning(name: str, special: bool) -> None:
    form = TurnForm(tools=TOOLS, in_reasoning=True)
    assert list(turns(name, special, form, range(10, 13)))


def check_forced_call(name: str, special: bool) -> None:
    tools = [TOOLS[0], TOOLS[3]]
    prefix = find_family(name).style.call_prefix(None)
    form = TurnForm(tools=tools, parallel=False, forced=True, prefix=prefix)
    for _, text, ended, calls, prose in turns(name, special, form, range(20, 23)):
        assert len(calls) <= 1, text
        if ended:
            assert calls
            assert not prose.strip()
    prefix = find_family(name).style.call_prefix("word")
    named = TurnForm(tools=tools, parallel=False, forced=True, prefix=prefix)
    for _, _, ended, calls, _ in turns(name, special, named, range(23, 25)):
        # The call that the prefix opens belongs to the events: its name does, too.
        assert {called for called, _, _ in calls} <= {"word"}
        assert calls or not ended


def check_answer_beside_tools(name: str, special: bool) -> None:
    """Beside tools the answer is a call or has its form."""
    form = TurnForm(tools=TOOLS[3:], format=FORM)
    answers = 0
    for _, text, ended, calls, prose in turns(name, special, form, range(30, 38)):
        if not ended:
            continue
        if calls:
            assert not prose.strip(), text
        else:
            assert json.loads(prose)["mood"] in ("calm", "rough")
            answers += 1
    assert answers


CHECKS = (check_free_text, check_open_reasoning, check_forced_call, check_answer_beside_tools)


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "spelled"])
@for_each(HELD)
def test_random_turns_keep_their_promises(name: str, special: bool) -> None:
    """Markers are tokens of their own, or spelled."""
    for check in CHECKS:
        check(name, special)


@pytest.mark.slow
@pytest.mark.parametrize("special", [True, False], ids=["tokens", "spelled"])
@for_each([name for name in families() if name not in UNHELD])
def test_random_turns_of_any_family_keep_their_promises(name: str, special: bool) -> None:
    for check in CHECKS:
        check(name, special)


@for_each(sorted(UNHELD))
def test_other_families_are_unguidable(name: str) -> None:
    with pytest.raises(Unguidable):
        turn_grammar(TurnForm(tools=TOOLS), find_family(name))


PATTERN = {"properties": {"a": {"type": "string", "pattern": "^x+$"}}}


@for_rows(
    [
        ("qwen3_coder", PATTERN, True),
        ("hermes", PATTERN, False),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "enum": True}}}, True),
        ("qwen3_coder", {"properties": {"a": {"type": "string"}}, "required": 5}, True),
        ("lfm2", PATTERN, True),
        ("gemma4", PATTERN, True),
        ("minimax_m3", PATTERN, True),
        ("lfm2", {"properties": {"a": {"$ref": "#"}}}, True),
        ("gemma4", {"properties": {"a": {"type": "array", "items": {"type": "string"}}}}, True),
        ("gemma4", {"properties": {"a": {"type": "array", "description": "Some."}}}, False),
        ("minimax_m3", {"properties": {"a": {"type": ["array", "null"]}}}, False),
        ("pythonic", {"properties": {"b": {"type": "string"}}}, True),
    ]
)
def test_promises_that_a_family_cannot_keep_are_named(
    name: str, schema: dict[str, Any], lost: bool
) -> None:
    tools = [
        ToolSpec("t", schema={"type": "object", "required": ["a"], **schema}, strict=True),
        ToolSpec("r", kind="custom", schema=INPUT, grammar=Grammar("lark", 'start: "a".."z"')),
    ]
    named = turn_grammar(TurnForm(tools=tools), find_family(name))[1]
    assert named == (("strict t", "grammar r") if lost else ("grammar r",))


def test_marker_that_is_a_stop_token_is_left_to_the_engine() -> None:
    """gpt-oss ends a call with `<|call|>`, on which engines stop: masks leave it out inside a
    grammar."""
    found = find_family("gpt_oss")
    tokenizer = ByteTokenizer(found.markers)
    stops = [tokenizer.tokens["<|call|>"], tokenizer.tokens["<|return|>"]]
    text = turn_grammar(TurnForm(tools=TOOLS), found, tokenizer.tokens, stops)[0]
    call = found.style.write_call("free", {"a": "b"}).removesuffix("<|call|>")
    assert tokenizer.accepts(text, call)
    assert calls_of(found, TOOLS, call, ended=True)[0] == [("free", '{"a": "b"}', True)]
