"""Writes the grammar rules of free text and reasoning between the calls of a turn: anything that
the family's parser does not read as the beginning of a call, or as a marker of reasoning.

A text may mention the markers of calls in quotes or code, without what follows them in a call, as
parsers read it.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, product
from typing import Final

from services.families.grammar.markup import Markup
from services.families.grammar.mentions import QUOTES
from services.families.grammar.shapes import Shape
from services.guides.client_grammar import quoted_regex
from services.guides.json_regex import respelled
from services.guides.writer import ANY, RuleWriter

LEAST_MARKER: Final = 4
"""Characters. A text cannot do without shorter markers, such as a bare `[` or `{`."""
_QUOTE: Final = f"/[{QUOTES}]/"
_SAMPLES: Final = [chr(code) for code in range(33, 127)]
_OTHER: Final = ("é", "中", "🙂")
"""Samples of characters beyond ASCII."""
_LINE_START: Final = r"((?s:.*)\n)?[ \t]*"


class TextRules:
    """Text and reasoning of a family with running text."""

    def __init__(self, grammar: Markup, writer: RuleWriter, openings: Iterable[str]) -> None:
        """`openings`: the beginnings of calls that no text may have, at the start of a line."""
        self._grammar = grammar
        self._writer = writer
        self._openings = tuple(openings)
        self._shapes = [call.shape for call in grammar.calls]
        pairs = [*grammar.think, *grammar.frames]
        self._tags = [plain_marker(marker) for marker in chain.from_iterable(pairs)]
        heads = [shape.head for shape in self._shapes if not shape.line_start]
        self._heads = list(dict.fromkeys(heads))

    @cached_property
    def words(self) -> str:
        """A terminal for text without a marker, not empty."""
        return self._writer.terminal(self._words)

    @cached_property
    def lines(self) -> str:
        """A terminal for such text up to the start of a line."""
        return self._writer.terminal(f"{self._words} & /{_LINE_START}/")

    @cached_property
    def _words(self) -> str:
        anywhere = [quoted_regex(text) for text in (*self._heads, *self._tags)]
        at_line_start = [_opening(shape) for shape in self._shapes if shape.line_start]
        at_line_start += map(quoted_regex, self._openings)
        body = ANY
        if anywhere:
            body += f" & ~/(?s:.*)({'|'.join(anywhere)})(?s:.*)/"
        if at_line_start:
            body += f" & ~/{_LINE_START}({'|'.join(dict.fromkeys(at_line_start))})(?s:.*)/"
        return body

    @cached_property
    def mentions(self) -> list[str]:
        """Rules for text up to a marker of calls after a quote, with what follows that."""
        rules: list[str] = []
        follow = self._follow()
        if follow:
            end = self._writer.terminal(follow)
            rules += [f"{rule} {end}" for rule in self._quoted(self._heads)]
        # A text may spell closers, but for the library tokens are never text.
        return rules + self._quoted(list(filter(self._writer.is_token, self._grammar.tails)))

    def tag_mentions(self, *, closers: bool) -> list[str]:
        """Rules for text up to an opener of reasoning after a quote, or to a closer, too."""
        count = 2 if closers else 1
        tags = chain.from_iterable(pair[:count] for pair in self._grammar.think)
        return self._quoted(list(map(plain_marker, tags)))

    def _quoted(self, markers: Sequence[str]) -> list[str]:
        """Rules for text up to a quote and one of these markers."""
        if not markers:
            return []
        opened = self._writer.terminal(f"({self._words})? {_QUOTE}")
        return self._writer.until_any(opened, markers)

    def _follow(self) -> str:
        """The body of a terminal for what may follow a mentioned marker: blanks, and a character
        that no call has there. "": there is none."""
        starts = {text[:1] for text in (*self._heads, *self._tags, *self._openings)}
        safe = [char for char in _SAMPLES if char not in starts and not self._continues(char)]
        choices = list(map(quoted_regex, safe))
        if not any(map(self._continues, _OTHER)):
            choices.append(r"[^\x00-\x7f]")
        return rf"/[ \t\r\n]{{0,64}}({'|'.join(choices)})/" if choices else ""

    def _continues(self, char: str) -> bool:
        """Whether a call may begin with a marker, perhaps blanks, and this character."""
        blanks = ("", " ", "\n")
        texts = [head + blank + char for head, blank in product(self._heads, blanks)]
        return any(
            shape.at(text, 0, False) is not None for shape, text in product(self._shapes, texts)
        )


def plain_marker(marker: str) -> str:
    """A marker without its holes."""
    return marker.replace("{ws}", "").replace("{suffix}", "")


def _opening(shape: Shape) -> str:
    """A regular expression for the beginning of a marker: all of it where that is short."""
    if len(shape.head.strip()) >= LEAST_MARKER:
        return quoted_regex(shape.head)
    pattern = re.sub(r"\(\?P<\w+>", "(?:", shape.pattern)
    pattern = re.sub(r"\{1,\d+\}\+", "+", re.sub(r"\{0,\d+\}\+", "*", pattern))
    return respelled(pattern, {"/": r"\/", "\n": r"\n"})
