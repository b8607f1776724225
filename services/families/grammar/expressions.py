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
_AHEAD: Final = "(?="
_ENDS: Final = ("$", r"\Z")
"""Atoms that match only at the end; every region ends with the text."""
_BLANKS: Final = re.compile(r"\s*(?:\{ws\}\s*)+")
"""Matches holes for blanks, with the blanks around them."""
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
    return _ExpressionReader(source, holes, closes).read()


def group_end(source: str) -> int:
    """The position after the end of a group, from its inside on. The source must be valid."""
    depth = 1
    end = 0
    for atom in _ATOM.finditer(source):
        end = atom.end()
        if atom[0] == "(":
            depth += 1
        elif atom[0] == ")":
            depth -= 1
        if depth == 0:
            break
    return end


class _ExpressionReader:
    def __init__(self, source: str, holes: Mapping[str, str], closes: bool) -> None:
        self._source = source
        self._holes = holes
        self._closes = closes
        self._at = 0
        self._depth = 0

    def read(self) -> list[str]:
        try:
            re.compile(self._source)
        except (re.error, RecursionError, OverflowError) as error:
            raise UnsupportedExpression(f"is not a regular expression: {error}") from None
        texts = sorted({_BLANKS.sub("{ws}", form) for form in self._branches()})
        for form in texts:
            _check_ends_of_holes(form)
        return sorted(texts, key=len, reverse=True)

    def _unsupported(self, at: int) -> UnsupportedExpression:
        return UnsupportedExpression(
            f"has {self._source[at : at + 8]!r}, which cannot be followed as text streams in"
        )

    def _branches(self) -> list[str]:
        branches = self._sequence()
        while self._source.startswith("|", self._at):
            self._at += 1
            branches += self._sequence()
        return branches

    def _sequence(self) -> list[str]:
        sequences = [""]
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            sequences = [form + part for form, part in product(sequences, self._part())]
            if len(sequences) > MAX_FORMS:
                raise UnsupportedExpression("has too many forms")
        return sequences

    def _part(self) -> list[str]:
        start = self._at
        if self._source[start] == "(":
            return self._group()
        match = _ATOM.match(self._source, start)
        if match is None or match[0] == "^":
            raise self._unsupported(start)
        atom = match[0]
        self._at = match.end()
        if atom in _ENDS:
            return [""]
        quantifier = self._quantifier()
        hole = _hole(atom, quantifier)
        if hole is not None:
            return [hole]
        text = _character(atom)
        if text is None:
            raise self._unsupported(start)
        return self._optional([text], quantifier, start)

    def _quantifier(self) -> str:
        match = _QUANTIFIER.match(self._source, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _optional(self, part: list[str], quantifier: str, start: int) -> list[str]:
        """The forms of a part that begins at `start`, with those of its quantifier."""
        if not quantifier:
            return part
        if quantifier[0] != "?":
            raise self._unsupported(start)
        return [*part, ""]

    def _group(self) -> list[str]:
        start = self._at
        named_group = _NAMED.match(self._source, start)
        if named_group is not None and named_group[1] in self._holes:
            return [self._captured(named_group)]
        if self._closes and self._source.startswith(_AHEAD, start):
            return self._ahead()
        opener = named_group or _GROUP.match(self._source, start)
        self._depth += 1
        if opener is None or self._depth > _MAX_NESTING:
            raise self._unsupported(start)
        self._at = opener.end()
        branches = self._branches()
        self._at += len(")")
        self._depth -= 1
        return self._optional(branches, self._quantifier(), start)

    def _captured(self, opener: re.Match[str]) -> str:
        """Reads a named group; returns its hole."""
        self._pass_group(opener.end())
        inside = self._source[opener.end() : self._at - len(")")]
        if self._quantifier():
            raise self._unsupported(opener.start())
        hole = self._holes[opener[1]]
        if hole in ("name", "key") and _WORDS.fullmatch(inside):
            return f"{{plain_{hole}}}"
        return f"{{{hole}}}"

    def _ahead(self) -> list[str]:
        """Reads what the expression looks ahead to; that is left out, and only at an end."""
        start = self._at
        self._pass_group(start + len(_AHEAD))
        following = self._source[self._at : self._at + 1]
        if following not in ("", "|", ")"):
            raise self._unsupported(start)
        return [""]

    def _pass_group(self, inside: int) -> None:
        """Passes over the group with an inside that begins at `inside`."""
        self._at = inside + group_end(self._source[inside:])


def _check_ends_of_holes(form: str) -> None:
    """Refuses a form with a hole that may go on with the text after it."""
    sample = "aaaa"
    for hole, after in _HOLE.findall(form):
        match = Shape(hole).at(sample + after, 0, True)
        if isinstance(match, re.Match) and match.end() > len(sample):
            raise UnsupportedExpression(f"has {after!r} after a part that may contain it")


def _hole(atom: str, quantifier: str) -> str | None:
    """The hole that stands for an atom with its quantifier; None if there is none."""
    if _BLANK.fullmatch(atom):
        several = len(atom) > len(r"\n") or atom == r"\s"
        if quantifier or several:
            return "{ws}"
    if quantifier[:1] in ("*", "+"):
        for hole, repeated in _REPEATED.items():
            if repeated.fullmatch(atom):
                return f"{{{hole}}}"
    return None


def _character(atom: str) -> str | None:
    """The only character of an atom; None if it has several."""
    if atom == "." or (len(atom) > 1 and atom[0] == "["):
        return None
    if len(atom) == 1:
        return atom
    escaped = atom[1]
    if len(atom) > 2:
        return chr(int(atom[2:], 16))
    if escaped in _CONTROL:
        return _CONTROL[escaped]
    return None if escaped.isalnum() else escaped
