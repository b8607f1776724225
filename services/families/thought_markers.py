"""Finds the markers that begin and end a family's reasoning, and the text that ends an open
thought.

A worker limits reasoning with them, by ids. It sees less than a parser, so they err on one side: an
open thought may count as ended, but an ended one never as open.
"""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

from services.families.family import Family
from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.grammar.shapes import Shape
from services.families.writing import Style

_LEAST_MARKER: Final = 4
"""Characters. Shorter markers, such as a bare `{` or `[`, are found in any text."""
_LITERAL: Final = re.compile(r"\{\w+\}|\n|(?<=>)(?=<)")
"""Splits a written call into pieces. Most pieces are a marker."""
_OPTIONAL: Final = re.compile(r"\{(?:ws|suffix|junk)\}")
_HOLE: Final = re.compile(r"\{\w+\}")


class ThoughtMarkers(NamedTuple):
    """Literal texts. Holes of the grammar are left out, or filled with the tokenizer's own
    spelling."""

    openers: list[str]
    closers: list[str]
    """Also the beginnings of calls, which end a thought, each with the first character of what must
    follow it."""
    edges: list[str]
    """Texts after which a block begins; openers elsewhere may be mentions. Empty: they always
    count."""
    end: str
    """Ends a thought: the turn goes on as the model chooses."""
    answer: str
    """Ends a thought and, in a format of messages, begins an answer."""


def thought_markers(
    family: Family, added: Iterable[str] = (), written: str = ""
) -> ThoughtMarkers | None:
    """The markers of a family; None if it reads no reasoning.

    `added`: the tokenizer's added tokens. `written`: the text that the chat template writes after
    reasoning, which replaces the family's own where it ends a thought.
    """
    grammar = family.grammar
    think = family.think
    if think is None or (isinstance(grammar, Markup) and not grammar.think):
        return None
    if isinstance(grammar, Channels):
        return _message_markers(grammar, family.style, think)
    if not isinstance(grammar, Markup):
        grammar = Markup(think=(think,))
    texts = [*added, *_LITERAL.split(family.style.call)]
    frames = list(chain.from_iterable(grammar.frames))
    calls = _beginnings_of_calls(grammar)
    closers = _spelled([think[1], *(closer for _, closer in grammar.think)], texts)
    end = _end_of_thought(family, written, closers)
    return ThoughtMarkers(
        openers=_spelled([think[0], *(opener for opener, _ in grammar.think)], texts),
        closers=_spelled([*closers, *calls, *(frames if grammar.framed else ())], texts),
        edges=_spelled([*closers, *(grammar.tails or ("}", "]")), *frames], texts),
        end=end,
        answer=end,
    )


def _message_markers(grammar: Channels, style: Style, think: tuple[str, str]) -> ThoughtMarkers:
    opener, closer = think
    heads = [shape.head for shape in (*grammar.starts, *grammar.again, *grammar.interrupts)]
    end = closer + style.joint
    return ThoughtMarkers(
        openers=[opener.removeprefix(style.joint)],
        closers=list(dict.fromkeys((closer, *grammar.ends, *heads))),
        edges=[],
        end=end,
        answer=end + style.text.partition("{text}")[0],
    )


def _beginnings_of_calls(grammar: Markup) -> list[str]:
    shapes = [call.shape for call in grammar.calls if not call.shape.line_start]
    long = [shape for shape in shapes if len(shape.head.strip()) >= _LEAST_MARKER]
    return list(chain.from_iterable(shape.beginnings for shape in long))


def _end_of_thought(family: Family, written: str, closers: Iterable[str]) -> str:
    """The end of a thought, with the white space around it: as a template has written it, else in
    the family's style."""
    for closer in closers:
        match = re.match(rf"(?s).*?{re.escape(closer)}\s*", written)
        if match is not None:
            return match[0]
    end = family.style.reasoning.partition("{text}")[2]
    if end.strip() != end or family.think is None:
        return end
    return f"\n{family.think[1]}\n\n"


def _spelled(markers: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Markers without holes: optional holes are left out, and all are filled where one of `texts`
    is the marker."""
    spelled: list[str] = []
    for marker in markers:
        if _HOLE.search(marker):
            spelled += filter(re.compile(Shape(marker).pattern).fullmatch, texts)
        plain = _OPTIONAL.sub("", marker)
        if not _HOLE.search(plain):
            spelled.append(plain)
    return list(dict.fromkeys(spelled))
