"""Expressions and their forms match the same texts."""

import random
import re
from collections.abc import Callable

import pytest

from services.families.grammar.expressions import UnsupportedExpression, forms
from services.families.grammar.shapes import Shape
from tests.kit.every import for_each, for_rows

HOLES = {"name": "name", "key": "key", "id": "word"}


@for_rows(
    [
        (r"<a>\s*<b>", ["<a>{ws}<b>"]),
        (r"\{\"x\":\s+", ['{"x":{ws}']),
        (r"<(?:a|bc)>", ["<bc>", "<a>"]),
        (r"<a>(?:\]<b>)?", ["<a>]<b>", "<a>"]),
        (r"<a>\n?", ["<a>{ws}"]),
        (r"<a>\n", ["<a>\n"]),
        (r"<a>[\s]*\n<b>", ["<a>{ws}<b>"]),
        (r"\x3ca\u003e", ["<a>"]),
        (r"</a>|$", ["</a>", ""]),
        (r"<f=(?P<name>[^>]+)>", ["<f={name}>"]),
        (r"f:(?P<name>\w+):(?P<id>\d+)<", ["f:{plain_name}:{word}<"]),
        (r"f\.(?P<key>[\w.-]+?)=", ["f.{plain_key}="]),
        (r"<a \w+=\d+>", ["<a {tag}={tag}>"]),
        (r"<a>[^<]*</a>", ["<a>{junk}</a>"]),
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


def _expression(rng: random.Random, depth: int = 0) -> tuple[str, Callable[[], str]]:
    """A random expression, and a writer of texts that it matches."""
    kind = rng.choice(
        ["text", "blank", "words", "branch", "optional", "sequence"][: 6 if depth < 3 else 3]
    )
    if kind == "text":
        text = rng.choice(["<a>", "<|b|>", "[C]", "{d", "e.f", "\\", "\n<", "é"])
        return re.escape(text), lambda: text
    if kind == "blank":
        blank = rng.choice([r"\s*", r"\s+", r"[ \n]*"])
        return blank, lambda: rng.choice([" ", "\n", " \n "])
    if kind == "words":
        words = rng.choice([r"=\w+;", r"=[\w.-]+;", r"=\d+;"])
        return words, lambda: f"={rng.choice(['1', '20', '007'])};"
    parts = [_expression(rng, depth + 1) for _ in range(2)]
    sources, writers = [source for source, _ in parts], [write for _, write in parts]
    if kind == "branch":
        return f"(?:{'|'.join(sources)})", lambda: rng.choice(writers)()
    if kind == "optional":
        return f"(?:{sources[0]})?", lambda: rng.choice(["", writers[0]()])
    return "".join(sources), lambda: "".join(write() for write in writers)


@for_each(range(4))
def test_text_of_an_expression_has_one_of_its_forms(seed: int) -> None:
    rng, supported = random.Random(seed), 0
    for _ in range(200):
        source, write = _expression(rng)
        try:
            found = forms(source, HOLES)
        except UnsupportedExpression:
            continue
        supported += 1
        shapes = [Shape(form) for form in found]
        for _ in range(5):
            text = write()
            assert re.fullmatch(source, text), (source, text)
            found_at = (shape.at(text, 0, True) for shape in shapes)
            ends = [match.end() for match in found_at if isinstance(match, re.Match)]
            assert len(text) in ends, (source, found, text)
    assert supported > 100
