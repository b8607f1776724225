"""Turns with calls as a family writes them, and the same turns with one marker damaged."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schemas.conversation import ToolSpec
from services.families import Family
from services.families.writing import ARGUMENTS, as_json

Call = tuple[str, dict[str, Any]]
STRING = {"type": "string"}
TOOLS = [
    ToolSpec("edit", schema={"properties": {"path": STRING, "text": STRING}}),
    ToolSpec("bash", schema={"properties": {"command": STRING, "timeout": {"type": "number"}}}),
    ToolSpec(
        "read",
        schema={
            "properties": {
                "path": STRING,
                "limit": {"type": "integer"},
                "note": {"type": ["string", "null"]},
            }
        },
    ),
    ToolSpec(
        "plan",
        schema={
            "properties": {
                "title": STRING,
                "options": {
                    "type": "object",
                    "properties": {"depth": {"type": "integer"}, "label": STRING},
                },
                "steps": {"type": "array", "items": STRING},
                "final": {"type": "boolean"},
            }
        },
    ),
    ToolSpec("store", schema={"type": "object"}),
    ToolSpec("ping", schema={"properties": {}}),
]
STRINGS = (
    *("/srv/app.py", "hello there", "ls -la", "ls\n", "def f(x):\n    return x"),
    *("one, two, three", "awk {print}", "It is 5 o'clock", 'say "yes" now', "C:\\new\\dir"),
    *("print(')')", "a = 1; b = 2", "x <= y", ""),
)
"""Values of strings."""
INSERTIONS = (" and so on", "x", "\n\nDone.", " I will wait.", ', "text": "hi"', ")", "7 ")
"""Texts that stand after a marker where the format has none."""
QUOTES = ('"', "'")
KEYS = ["path", "text", "command", "timeout", "limit", "note", "title", "options", "steps"]
KEYS += ["final", "key", "value"]
_NAMES = re.compile("|".join(rf"\b{name}\b" for name in (*KEYS, *(tool.name for tool in TOOLS))))
"""Matches markers with a name: in another's place they are another argument or call."""
_PIECES = re.compile(
    r"\]<\]minimax\[>\[</?[^<>]*>|</?[^<>\n]{1,120}>|\[/?[A-Z_]+\]|```\w*|[\[\]{}(),:;='\"]|\w{3,}"
)
"""Matches the markers of a written turn."""


@dataclass(frozen=True)
class DamagedTurn:
    """A turn of `family` with one marker damaged."""

    family: Family
    damage: str
    """The sort of damage."""
    calls: list[Call]
    """The calls that the turn had before."""
    raw: str


@dataclass(frozen=True)
class _Written:
    """A written turn, and the places of its markers."""

    raw: str
    pieces: list[tuple[int, int]]
    content: set[int]
    """The places that belong to names, keys and values."""
    closers: set[str]
    """Markers that close a call: with one in another's place, the call ends there."""


def any_call(chance: random.Random) -> Call:
    """A call of one of `TOOLS`."""

    def text() -> str:
        return chance.choice(STRINGS)

    options: dict[str, Callable[[], dict[str, Any]]] = {
        "edit": lambda: {"path": text(), "text": text()},
        "bash": lambda: {"command": text(), "timeout": chance.choice((5, 2.5))},
        "read": lambda: {"path": text(), "limit": 77, "note": chance.choice((None, "now"))},
        "plan": lambda: {
            "title": text(),
            "options": {"depth": 3, "label": "deep"},
            "steps": ["first", "second"],
            "final": True,
        },
        "store": lambda: {"key": text(), "value": text()},
        "ping": dict,
    }
    name = chance.choice(["edit", "edit", *options])
    arguments = options[name]()
    kept = chance.randint(1, 4)
    return name, dict(list(arguments.items())[:kept])


def damaged_turn(family: Family, chance: random.Random) -> DamagedTurn:
    """A turn of one or two calls with one marker damaged."""
    calls = [any_call(chance) for _ in range(chance.choice((1, 1, 2)))]
    damage = chance.choice((*DAMAGES, "key beside the arguments"))
    if damage == "key beside the arguments":
        raw = family.style.joint.join(_with_key_beside(family, call) for call in calls)
        return DamagedTurn(family, damage, calls, raw)
    written = _written(family, calls)
    start, end = place = chance.choice(written.pieces)
    is_beside_value = end in written.content or (
        start - 1 in written.content and damage == "after another"
    )
    if written.raw[start:end] in QUOTES:  # what is added beside a quote may be text of its string
        damage = chance.choice(("deleted", "doubled", "replaced"))
    elif is_beside_value and damage in ("followed by text", "after another"):
        damage = "deleted"
    others = [written.raw[a:b] for a, b in written.pieces] + list(family.markers)
    marker = _damaged(damage, written, place, chance, others)
    raw = written.raw[:start] + marker + written.raw[end:]
    return DamagedTurn(family, damage, calls, raw)


def _written(family: Family, calls: list[Call]) -> _Written:
    raw = family.style.joint.join(family.style.write_call(*call) for call in calls)
    content: set[int] = set()
    for name, arguments in calls:
        names = {name, f"functions.{name}", f"functions.{name}:0"}
        for text in sorted(_texts(arguments) | names, key=len):
            for match in re.finditer(re.escape(text), raw):
                content.update(range(match.start(), match.end()))
    pieces = [match.span() for match in _PIECES.finditer(raw)]
    solid = [(a, b) for a, b in pieces if not set(range(a, b)) <= content]
    ends = family.style.call.partition(ARGUMENTS)[2] or "}"  # the end of the JSON closes it
    closers = {*_PIECES.findall(ends), *getattr(family.grammar, "ends", ())}
    return _Written(raw, solid, content, closers)


def _texts(value: Any) -> set[str]:
    """The keys and values in `value` as formats write them."""
    if isinstance(value, dict):
        return set(value).union(*map(_texts, value.values()))
    if isinstance(value, list):
        return set().union(*map(_texts, value))
    if isinstance(value, str):
        forms = {value, json.dumps(value)[1:-1], repr(value)[1:-1]}
        return {form for form in forms if len(form) > 1}
    return {json.dumps(value), repr(value)}


DAMAGES = (
    *("deleted", "doubled", "cut", "misspelt", "replaced", "with a blank"),
    *("followed by text", "after another"),
)
"""What may happen to a marker."""


def _damaged(
    damage: str, w: _Written, place: tuple[int, int], chance: random.Random, others: list[str]
) -> str:
    """What stands in a marker's place. `others`: other markers."""
    start, end = place
    marker = w.raw[start:end]
    match damage:
        case "deleted":
            return ""
        case "doubled":
            if marker in QUOTES:
                return "" if marker in (w.raw[start - 1], w.raw[end : end + 1]) else marker * 2
            return marker + chance.choice(("", "\n", " ")) + marker
        case "cut":
            at = chance.randint(0, len(marker) - 1)
            return chance.choice((marker[:at], marker[at + 1 :]))
        case "misspelt":
            at = chance.choice([n for n in range(len(marker)) if start + n not in w.content])
            letter = chance.choice("xe_ ")
            inserted = "" if start + at - 1 in w.content else letter + marker[at]
            return marker[:at] + chance.choice(("", letter, inserted)) + marker[at + 1 :]
        case "replaced":
            tags = [other for other in others if other not in w.closers and not other.isalnum()]
            unnamed = [tag for tag in tags if not _NAMES.search(tag)]
            return chance.choice(unnamed or tags or others)
        case "with a blank":
            at = chance.randint(0, len(marker))
            return marker[:at] + chance.choice((" ", "\n")) + marker[at:]
        case "followed by text":
            # Text with quotes is read as a value there.
            texts = [text for text in INSERTIONS if '"' not in text or "call:" not in w.raw]
            return marker + chance.choice(texts)
        case _:
            names = {tool.name for tool in TOOLS}
            openers = {other for other in others if any(name in other for name in names)}
            quotes = {*QUOTES} if w.raw[start - 1] in QUOTES else set()
            return chance.choice(sorted(set(others) - openers - w.closers - quotes)) + marker


def _with_key_beside(family: Family, call: Call) -> str:
    """A call with its last argument beside the others, where arguments are an object."""
    name, arguments = call
    raw = family.style.write_call(name, arguments)
    if len(arguments) < 2:
        return raw
    *first, last = arguments.items()
    if family.style.arguments is not as_json:
        return raw
    inside = as_json(dict(first)) + ", " + as_json(dict([last]))[1:-1]
    return raw.replace(as_json(arguments), inside)
