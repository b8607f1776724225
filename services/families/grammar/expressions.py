r"""Reads regular expressions as shapes, so that expressions from a model's files never run.

An expression becomes all its forms: fixed text with the bounded holes of `shapes`.
`<call>\s*(?:a|b)(?P<name>\w+)` has the forms `<call>{ws}a{plain_name}` and
`<call>{ws}b{plain_name}`. What has no such forms is refused.
"""

import re
from collections.abc import Mapping
from itertools import product
from typing import Final

from services.families.grammar.shapes import Shape

MAX_FORMS: Final = 16
_MAX_NESTING: Final = 16
_ATOM: Final = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL
)
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")
_NAMED: Final = re.compile(r"\(\?P<(\w+)>")
_GROUP: Final = re.compile(r"\((?:\?:|(?!\?))")
_BLANK: Final = re.compile(r"\\[snrt]|[ \n\t\r]|\[(?:\\[snrt]|[ \n\t\r])+\]")
_WORDS: Final = re.compile(r"(?:\\w|\[(?:\\[\w.-]|[\w.-])+\])\+\??")
"""Matches the inside of a group with the characters of a word."""
_REPEATED: Final = {
    "tag": re.compile(r"\\[wdS]|\[[\w\\.-]+\]"),
    "junk": re.compile(r"\.|\[(?:\\s\\S|\\S\\s|\^[<>\\n]+)\]"),
}
"""Repeated atoms of an expression, by their holes."""
_HOLE: Final = re.compile(r"(\{(?:plain_)?(?:name|key|word|tag|junk)\})([^{])", re.DOTALL)
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t"}


class UnsupportedExpression(ValueError):
    """The expression is invalid, or has no forms."""


def forms(source: str, holes: Mapping[str, str], *, closes: bool = False) -> list[str]:
    """The forms of an expression in the syntax of `re`, the longest first. `holes`: the holes of
    named groups that are captured; a group of words becomes `plain_name` or `plain_key`. `closes`:
    what it only looks ahead to at its end is left out, because what opens next ends a region, too.
    Raises UnsupportedExpression."""
    return _Reader(source, holes, closes).read()


def group_end(source: str) -> int:
    """The position after the end of a group, from its inside on. The source must be valid."""
    at, depth = 0, 1
    while depth and (atom := _ATOM.match(source, at)) is not None:
        depth += (atom[0] == "(") - (atom[0] == ")")
        at = atom.end()
    return at


class _Reader:
    def __init__(self, source: str, holes: Mapping[str, str], closes: bool) -> None:
        self._source, self._holes, self._closes = source, holes, closes
        self._at = self._depth = 0

    def read(self) -> list[str]:
        try:
            re.compile(self._source)
        except (re.error, RecursionError, OverflowError) as error:
            raise UnsupportedExpression(f"is not a regular expression: {error}") from None
        found = {re.sub(r"\s*(?:\{ws\}\s*)+", "{ws}", form) for form in self._branches()}
        for form in found:
            for hole, after in _HOLE.findall(form):
                match = Shape(hole).at("aaaa" + after, 0, True)
                if isinstance(match, re.Match) and match.end() > len("aaaa"):
                    raise UnsupportedExpression(f"has {after!r} after a part that may contain it")
        return sorted(found, key=lambda form: (-len(form), form))

    def _unsupported(self, at: int) -> UnsupportedExpression:
        return UnsupportedExpression(
            f"has {self._source[at : at + 8]!r}, which cannot be followed as text streams in"
        )

    def _branches(self) -> list[str]:
        found = self._sequence()
        while self._source.startswith("|", self._at):
            self._at += 1
            found += self._sequence()
        return found

    def _sequence(self) -> list[str]:
        found = [""]
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            found = [form + part for form, part in product(found, self._part())]
            if len(found) > MAX_FORMS:
                raise UnsupportedExpression("has too many forms")
        return found

    def _part(self) -> list[str]:
        start = self._at
        if self._source[start] == "(":
            return self._group()
        atom = _ATOM.match(self._source, start)
        if atom is None or atom[0] == "^":
            raise self._unsupported(start)
        self._at = atom.end()
        if atom[0] in ("$", r"\Z"):  # every region ends with the text
            return [""]
        quantifier = self._quantifier()
        if _BLANK.fullmatch(atom[0]) and (
            quantifier or len(atom[0]) > len(r"\n") or atom[0] == r"\s"
        ):
            return ["{ws}"]
        if quantifier[:1] in ("*", "+"):
            for hole, repeated in _REPEATED.items():
                if repeated.fullmatch(atom[0]):
                    return [f"{{{hole}}}"]
        text = _character(atom[0])
        if text is None or quantifier[:1] not in ("", "?"):
            raise self._unsupported(start)
        return [text, ""] if quantifier else [text]

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self._source, self._at)
        self._at = self._at if found is None else found.end()
        return "" if found is None else found[0]

    def _group(self) -> list[str]:
        start, named = self._at, _NAMED.match(self._source, self._at)
        hole = self._holes.get(named[1]) if named is not None else None
        if named is not None and hole is not None:
            self._at = named.end() + group_end(self._source[named.end() :])
            if self._quantifier():
                raise self._unsupported(start)
            plain = hole in ("name", "key") and _WORDS.fullmatch(
                self._source, named.end(), self._at - 1
            )
            return [f"{{plain_{hole}}}" if plain else f"{{{hole}}}"]
        if self._closes and self._source.startswith("(?=", start):
            self._at += len("(?=") + group_end(self._source[start + len("(?=") :])
            if self._source[self._at : self._at + 1] in ("", "|", ")"):
                return [""]
            raise self._unsupported(start)
        opener = named or _GROUP.match(self._source, start)
        self._depth += 1
        if opener is None or self._depth > _MAX_NESTING:
            raise self._unsupported(start)
        self._at = opener.end()
        found = self._branches()
        self._at += 1
        self._depth -= 1
        quantifier = self._quantifier()
        if quantifier[:1] not in ("", "?"):
            raise self._unsupported(start)
        return [*found, ""] if quantifier else found


def _character(atom: str) -> str | None:
    """The only character of an atom; None if it has several."""
    if len(atom) == 1:
        return None if atom == "." else atom
    if atom[:2] in (r"\x", r"\u"):
        return chr(int(atom[2:], 16))
    if atom[0] == "[" or (atom[1].isalnum() and atom[1] not in _CONTROL):
        return None
    return _CONTROL.get(atom[1], atom[1])
