"""Expressions and their forms match the same texts."""

import pytest

from services.families.grammar.expressions import UnsupportedExpression, forms
from tests.kit.every import for_each, for_rows

HOLES = {"name": "name", "key": "key", "id": "word"}


@for_rows(
    [
        (r"<a>\s*<b>", ["<a>{ws}<b>"]),
        (r"<(?:a|bc)>", ["<bc>", "<a>"]),
        (r"<a>(?:\]<b>)?", ["<a>]<b>", "<a>"]),
        (r"<a>\n?", ["<a>{ws}"]),
        (r"\x3ca\u003e", ["<a>"]),
        (r"</a>|$", ["</a>", ""]),
        (r"<f=(?P<name>[^>]+)>", ["<f={name}>"]),
        (r"f:(?P<name>\w+):(?P<id>\d+)<", ["f:{plain_name}:{word}<"]),
        (r"f\.(?P<key>[\w.-]+?)=", ["f.{plain_key}="]),
        (r"<a>.*?</a>", ["<a>{junk}</a>"]),
        (r"<a>(x)(?P<other>y)", ["<a>xy"]),
    ]
)
def test_forms_of_an_expression(source: str, expected: list[str]) -> None:
    assert forms(source, HOLES) == expected


UNSUPPORTED = (
    *("(", "[", "*", "a)", "x{2,1}", "(?P<name>", "(a+)+", "(?:ab)*", "a+", "a{2}", "(a|b)*c"),
    *(r"(a)\1", r"(?<=a)b", "(?!a)b", "(?=a)b", "(?i)a", "(?>a)b", "a*+b", "^a", r"\Aa", r"a\b"),
    *(r"<.>", "[ab]c", r"\p{L}", "(?P<name>x)?a", r"<\w+x>", r"<(?P<name>[^\n]+)a>"),
    *("(" * 40 + ")" * 40, "".join(f"(?:{a}|x{a})" for a in "abcdef")),
)


@for_each(UNSUPPORTED)
def test_other_expressions_are_unsupported(source: str) -> None:
    with pytest.raises(UnsupportedExpression):
        forms(source, HOLES)


def test_closer_may_look_ahead_at_its_end() -> None:
    assert forms(r"</a>(?=\s*<b>)|(?=<c>)", {}, closes=True) == ["</a>", ""]
    with pytest.raises(UnsupportedExpression):
        forms(r"(?=<c>)</a>", {}, closes=True)
