"""Finds the markers that begin and end a family's reasoning, and the text that ends an open thought.

A worker enforces a budget of reasoning with them, by ids. It sees less than a parser, so they are chosen to err on one
side: a thought may pass for ended that is not, but never the other way round.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from services.families.family import Family
from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.grammar.shapes import Shape

_LEAST_MARKER: Final = 4
"""Characters. Shorter markers, such as a bare `{` or `[`, are found in any text."""
_SPACE: Final = " \t\r\n"
_LITERAL: Final = re.compile(r"\{\w+\}|\n|(?<=>)(?=<)")
"""Splits a written call into pieces, most of which are a marker."""
_OPTIONAL: Final = re.compile(r"\{(?:ws|suffix|junk)\}")
_HOLE: Final = re.compile(r"\{\w+\}")


class ThoughtMarkers(NamedTuple):
    """Literal texts. Holes of the grammar are left out, or filled with the tokenizer's own spelling."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    """Also the beginnings of calls, which end a thought, each with the first character of what must follow it."""
    edges: tuple[str, ...]
    """Texts after which a thought may open, as at a line's start; empty: it may open anywhere."""
    end: str
    """Ends a thought: the turn goes on as the model chooses."""
    answer: str
    """Ends a thought and, in a format of messages, begins an answer."""


def thought_markers(family: Family, added: Iterable[str] = (), written: str = "") -> ThoughtMarkers | None:
    """The markers of a family; None if it reads no reasoning.

    `added`: the tokenizer's added tokens. `written`: the text that the chat template writes after reasoning, which
    replaces the family's own where it ends a thought.
    """
    if family.think is None:
        return None
    grammar, style, (opener, closer) = family.grammar, family.style, family.think
    if isinstance(grammar, Channels):
        heads = (shape.head for shape in (*grammar.starts, *grammar.again, *grammar.interrupts))
        end = closer + style.joint
        return ThoughtMarkers(
            openers=(opener.removeprefix(style.joint),),
            closers=_distinct((closer, *grammar.ends, *heads)),
            edges=(),
            end=end,
            answer=end + style.text.partition("{text}")[0],
        )
    pairs: tuple[tuple[str, str], ...] = (family.think,)
    calls: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    tails: tuple[str, ...] = ()
    if isinstance(grammar, Markup):
        if not grammar.think:
            return None
        pairs = (family.think, *grammar.think)
        shapes = [call.shape for call in grammar.calls if not call.shape.line_start]
        calls = tuple(text for shape in shapes if len(shape.head.strip()) >= _LEAST_MARKER for text in shape.beginnings)
        frames = tuple(marker for pair in grammar.frames for marker in pair)
        tails = grammar.tails or ("}", "]")
        calls += frames if grammar.framed else ()
    spell = _Spelling((*added, *_LITERAL.split(style.call)))
    closers = spell(closer for _, closer in pairs)
    end = _after_thought(written, closers) or _own_end(family)
    return ThoughtMarkers(
        openers=spell(opener for opener, _ in pairs),
        closers=_distinct((*closers, *spell(calls))),
        edges=_distinct((*closers, *spell(tails), *spell(frames))),
        end=end,
        answer=end,
    )


def _after_thought(written: str, closers: Iterable[str]) -> str:
    """The part of a template's text that ends a thought, with the white space around it; "" if none does."""
    ends = [written.find(closer) + len(closer) for closer in closers if closer in written]
    if not ends:
        return ""
    rest = written[min(ends) :]
    return written[: min(ends)] + rest[: len(rest) - len(rest.lstrip(_SPACE))]


def _own_end(family: Family) -> str:
    assert family.think is not None
    end = family.style.reasoning.partition("{text}")[2]
    return end if end.strip() != end else f"\n{family.think[1]}\n\n"


class _Spelling:
    """Fills the holes of markers: optional ones with nothing, and all as one of `texts` spells the marker."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)

    def __call__(self, markers: Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for marker in markers:
            plain = _OPTIONAL.sub("", marker)
            if _HOLE.search(marker):
                pattern = re.compile(Shape(marker).pattern)
                found += [text for text in self._texts if pattern.fullmatch(text)]
            if not _HOLE.search(plain):
                found.append(plain)
        return _distinct(found)


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
