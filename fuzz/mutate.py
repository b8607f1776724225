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
    *("null", "true", "None", "-0.5", "1e5", "00", "9" * 40, "{}", "[]", '{"a": [1, {"b": null}]}'),
    *(
        "船🌊",
        "&amp;",
        "<![CDATA[",
        "]]>",
        "\n\n",
        "\t",
        "\u00a0",
        "\x00",
        "\\u00e9",
        "\\ud800",
        "</",
    ),
    *"\"'{}[](),:;=|<>\n \\",
    *('{"name": "read_ledger", "arguments": {"page": 1}}', "read_ledger(page=1)"),
    *('"name": ', '"arguments": ', '"parameters": ', '"function": {', '"id": "a1b2c3d4e", '),
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
    at, end = _span(chance, text)
    word, other = chance.choice(_words(family)), chance.choice(_texts(family))
    first, last = _span(chance, other)
    match chance.randrange(8):
        case 0 | 1 | 2:
            piece = word
        case 3:
            piece = word[: chance.randrange(len(word)) + 1]
        case 4:
            piece = other[first:last]
        case 5:
            piece = text[at:end] * chance.choice((0, 2, 3, 6))
        case 6:
            piece = chance.choice('x9 <\n"{') * chance.choice((70, 300, 600))
        case _:
            return text[:at]
    return text[:at] + piece + text[chance.choice((at, end)) :]


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
