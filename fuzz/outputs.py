"""Draws outputs of models: pieces of a family's format in any order, and vectors with changes.

A case is a vector (`tests/vectors`); `prefix` and `calls_as_text` may be set, too.
"""

from functools import cache
from random import Random
from typing import Any, Final

from fuzz.markers import notations
from schemas.events import FinishReason
from services.families import families, find_family
from services.families.grammar.shapes import HOLE
from tests.kit.parser_cases import vectors, words

Case = dict[str, Any]


_STRING: Final = {"type": "string"}
_LOOP: Final = {"$ref": "#/$defs/loop"}
_TREE: Final = {"$ref": "#/$defs/tree"}
_UNUSUAL: Final[dict[str, Any]] = {
    "no_schema": {},
    "not_a_schema": {"properties": ["path"], "type": 7},
    "read.read": {"properties": {"read": _STRING, "key": {"type": []}}},
    "mcp__vault-7.read.v2": {"properties": {"key": _STRING}},
    "unions": {
        "properties": {
            "maybe": {"type": ["string", "null"]},
            "many": {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "array"}]},
            "empty": {"anyOf": []},
            "listed": {"enum": [1, "one", None, True, [1], {"a": 1}]},
            "wrong": "string",
        }
    },
    "references": {
        "$defs": {"loop": _LOOP, "tree": {"properties": {"kids": {"items": _TREE}}}},
        "properties": {
            "loop": _LOOP,
            "tree": _TREE,
            "gone": {"$ref": "#/nowhere/at~1all"},
            "arguments": {"type": "object", "properties": {"a": {"type": "object"}}},
        },
    },
}
UNUSUAL: Final = tuple(
    {"name": name, "description": "", "parameters": schema} for name, schema in _UNUSUAL.items()
)
KNOWN: Final = tuple({tool["name"]: tool for case in vectors() for tool in case["tools"]}.values())
"""Every tool of a vector."""
OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "family": tuple(families()),
    "tools": ((), KNOWN, KNOWN, KNOWN, UNUSUAL, KNOWN + UNUSUAL),
    "prompt_ends_in_reasoning": (False, True),
    "finish_reason": tuple(reason.value for reason in FinishReason),
    "calls_as_text": (False, False, False, True),
}
_IN_HOLES: Final = {
    **{"name": "read_ledger", "plain_name": "read_ledger", "key": "account", "plain_key": "page"},
    **{"bare": "page", "words": "page", "word": "string", "tag": "x", "bool": "true"},
    "id": "functions.read_ledger:0",
}
"""Texts that fit the holes of a shape; the others may be empty."""
FILLER: Final = (
    *("null", "true", "None", "-0.5", "1e5", "00", "12", "{}", "[]", "船🌊", "é", "&amp;", "</"),
    *("<![CDATA[", "]]>", "\\u00e9", "\\ud800", "\u00a0", "\x00", "\t", "\n\n", "text "),
    *('"name": ', '"arguments": ', '"parameters": ', '"function": {', '"id": "a1b2c3d4e", '),
    *('{"a": [1, {"b": null}]}', '{"name": "read_ledger", "arguments": {"page": 1}}'),
    *("read_ledger(page=1)", "9" * 40, *"\"'{}[](),:;=|<>\n \\"),
    *(tool["name"] for tool in KNOWN),
    *dict.fromkeys(key for tool in KNOWN for key in tool["parameters"].get("properties", ())),
)


@cache
def pieces(name: str) -> tuple[str, ...]:
    """What the family's output is made of: the words of its vectors, its markers, its calls, and
    things that go wrong."""
    own = find_family(name)
    seen = {word for case in vectors(name) for word in words(case["raw"])}
    written = {
        own.style.write_call("read_ledger", {"account": "ls <b>"}),
        own.style.write_reasoning("hm"),
        own.style.call_prefix("read_ledger"),
        own.style.call_prefix(None),
    }
    markers = {HOLE.sub(lambda hole: _IN_HOLES.get(hole[1], ""), text) for text in notations(name)}
    unlike_words = {word for word in seen if len(word) > 1 and not word.isalnum()}
    return *sorted(filter(None, unlike_words | written | markers)), *FILLER


def any_case(name: str, chance: Random) -> Case:
    """A generation of a family: pieces in any order, or a vector, with a few changes."""
    case: Case = {
        "family": name,
        "raw": "".join(chance.choices(pieces(name), k=chance.randint(0, 14))),
        "tools": KNOWN,
        "prompt_ends_in_reasoning": chance.random() < 0.5,
        "finish_reason": "stop",
    }
    if chance.random() < 0.7:
        case = chance.choice(vectors(name) or [case])
    for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
        case = mutate(case, chance)
    return case


def mutate(case: Case, chance: Random) -> Case:
    """Another case near to this one."""
    text = _edited(case.get("prefix", "") + case["raw"], case["family"], chance)
    start = chance.choice((*[0] * 9, chance.randrange(len(text) + 1)))
    changed = {**case, "prefix": text[:start], "raw": text[start:]}
    if chance.random() < 0.3:
        option = chance.choice([*OPTIONS])
        changed[option] = chance.choice(OPTIONS[option])
    return changed


def _edited(text: str, name: str, chance: Random) -> str:
    """The text after one edit: an insertion, a deletion or a repetition."""
    start, end = _span(text, chance)
    new = chance.choice(pieces(name))
    match chance.randrange(8):
        case 0:
            new = new[: chance.randrange(len(new)) + 1]
        case 1:
            other = chance.choice(vectors(name) or vectors())["raw"]
            new = other[slice(*_span(other, chance))]
        case 2:
            new = text[start:end] * chance.choice((0, 2, 3, 6))
        case 3:
            new = chance.choice('x9 <\n"{') * chance.choice((70, 300, 600))
        case 4:
            return text[:start]
    return text[:start] + new + text[chance.choice((start, end)) :]


def _span(text: str, chance: Random) -> tuple[int, int]:
    start = chance.randrange(len(text) + 1)
    return start, start + chance.choice((1, 1, 2, 4, 8, 16, 40, 120))
