"""Mutates inputs with the families' grammars: splices markers, whole calls and pieces of vectors
into the text."""

from functools import cache
from random import Random
from typing import Final

from fuzz.cases import FAMILIES, HEADER
from fuzz.shapes import spellings
from fuzz.toolsets import of_the_vectors
from tests.kit.parser_cases import vectors

VALUES: Final = (
    *("null", "true", "True", "None", "1", "-0.5", "1e5", "00", "9" * 40),
    *("{}", "[]", '{"a": [1, {"b": null}]}', "plain words ", "船🌊", "&amp;", "<![CDATA[", "]]>"),
    *("\n", "\n\n", " ", "\t", "\u00a0", "\x00", "\\", "\\u00e9", "\\ud800", "\\n", "</", "/>"),
    *"\"'{}[](),:;=|<>",
    *('{"name": "read_ledger", "arguments": {"page": 1}}', "read_ledger(page=1)"),
    *('"name": ', '"arguments": ', '"parameters": ', '"function": {', '"type": "function", '),
    '"id": "a1b2c3d4e", ',
)


@cache
def _words(family: str) -> tuple[str, ...]:
    names = [tool.name for tool in of_the_vectors()]
    keys = [key for tool in of_the_vectors() for key in tool.schema.get("properties", {})]
    return (*spellings(family) * 3, *VALUES, *names, *dict.fromkeys(keys))


@cache
def _texts(family: str) -> tuple[str, ...]:
    return tuple(one["raw"] for one in vectors(family)) or ("",)


def _edit(chance: Random, family: str, text: str) -> str:
    """One change of the text: words and pieces of other texts put in, parts dropped or repeated."""
    kind = chance.randrange(13)
    if kind < 8:
        at, end = _span(chance, text) if kind > 2 else (chance.randrange(len(text) + 1), 0)
        word = chance.choice(_words(family)) if kind < 5 else ""
        if kind == 7:
            return text[:end] + text[at:end] * chance.choice((1, 1, 2, 5)) + text[end:]
        return text[:at] + word + text[max(at, end) :]
    match kind:
        case 8:
            return text[: chance.randrange(len(text) + 1)]
        case 9 | 10:
            other = chance.choice(_texts(family))
            first, last = _span(chance, other)
            piece = other[first:last]
        case 11:
            marker = chance.choice(spellings(family) or ("<",))
            piece = marker[: chance.randrange(len(marker)) + 1]
        case _:
            piece = chance.choice('x9 <\n"{') * chance.choice((70, 300, 600))
    at = chance.randrange(len(text) + 1)
    return text[:at] + piece + text[at:]


def _span(chance: Random, text: str) -> tuple[int, int]:
    at = chance.randrange(len(text) + 1)
    return at, min(len(text), at + chance.choice((1, 1, 2, 4, 8, 16, 40, 120)))


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
        text = _edit(chance, family, text)
    return bytes(header) + text.encode("utf-8", "replace")
