"""Mutates inputs with the families' grammars: splices markers, whole calls and pieces of vectors
into the text."""

import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Final

from fuzz.cases import FAMILIES, HEADER
from fuzz.shapes import spellings
from fuzz.toolsets import VECTORS, of_the_vectors

VALUES: Final = (
    *("null", "true", "True", "None", "1", "-0.5", "1e5", "00", "9" * 40),
    *("{}", "[]", '{"a": [1, {"b": null}]}', "plain words ", "船🌊", "&amp;", "<![CDATA[", "]]>"),
    *("\n", "\n\n", " ", "\t", "\u00a0", "\x00", "\\", "\\u00e9", "\\ud800", "\\n", "</", "/>"),
    *"\"'{}[](),:;=|<>",
    *('{"name": "read_ledger", "arguments": {"page": 1}}', "read_ledger(page=1)"),
    *('"name": ', '"arguments": ', '"parameters": ', '"function": {', '"type": "function", '),
    '"id": "a1b2c3d4e", ',
)
Edit = Callable[[Random, str, str], str]


@cache
def _words(family: str) -> tuple[str, ...]:
    names = [tool.name for tool in of_the_vectors()]
    keys = [key for tool in of_the_vectors() for key in tool.schema.get("properties", {})]
    return (*spellings(family) * 3, *VALUES, *names, *dict.fromkeys(keys))


@cache
def _texts(family: str) -> tuple[str, ...]:
    file = VECTORS / f"{family}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return tuple(json.loads(line)["raw"] for line in lines) or ("",)


def _splice(chance: Random, family: str, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(_words(family)) + text[at:]


def _replace(chance: Random, family: str, text: str) -> str:
    at, end = _span(chance, text)
    return text[:at] + chance.choice(_words(family)) + text[end:]


def _delete(chance: Random, family: str, text: str) -> str:
    at, end = _span(chance, text)
    return text[:at] + text[end:]


def _repeat(chance: Random, family: str, text: str) -> str:
    at, end = _span(chance, text)
    return text[:end] + text[at:end] * chance.choice((1, 1, 2, 5)) + text[end:]


def _truncate(chance: Random, family: str, text: str) -> str:
    return text[: chance.randrange(len(text) + 1)]


def _cross(chance: Random, family: str, text: str) -> str:
    other = chance.choice(_texts(family))
    start, end = _span(chance, other)
    at = chance.randrange(len(text) + 1)
    return text[:at] + other[start:end] + text[at:]


def _break(chance: Random, family: str, text: str) -> str:
    """Half of a marker."""
    word = chance.choice(spellings(family) or ("<",))
    return _insert(chance, text, word[: chance.randrange(len(word)) + 1])


def _stretch(chance: Random, family: str, text: str) -> str:
    return _insert(chance, text, chance.choice('x9 <\n"{') * chance.choice((70, 300, 600)))


_EDITS: Final[tuple[Edit, ...]] = (
    *(_splice, _splice, _splice, _replace, _replace, _delete, _delete),
    *(_repeat, _truncate, _cross, _cross, _break, _stretch),
)


def mutate(data: bytes, chance: Random) -> bytes:
    """Another input near `data`."""
    header = bytearray(data[:HEADER].ljust(HEADER, b"\0"))
    text = data[HEADER:].decode("utf-8", "replace")
    if chance.random() < 0.3:
        header[chance.randrange(1, HEADER)] = chance.choice((0, 0, 1, 2, 3, chance.randrange(256)))
    if chance.random() < 0.03:
        header[0] = chance.randrange(len(FAMILIES))
    family = FAMILIES[header[0] % len(FAMILIES)]
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        text = chance.choice(_EDITS)(chance, family, text)
    return bytes(header) + text.encode("utf-8", "replace")


def _insert(chance: Random, text: str, piece: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + piece + text[at:]


def _span(chance: Random, text: str) -> tuple[int, int]:
    at = chance.randrange(len(text) + 1)
    return at, min(len(text), at + chance.choice((1, 1, 2, 4, 8, 16, 40, 120)))
