"""The markers of a family's grammar, for properties that concern them."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final

from services.families import find_family
from services.families.grammar.markup import Markup
from services.families.grammar.shapes import HOLE, Shape

_WORDS: Final = frozenset(
    {"names", "arguments", "ids", "unwrap", "rename", "field", "value", "consumed"}
)
"""Fields of a grammar that hold words inside markers or JSON, and no markers."""


def _notations(part: Any) -> Iterator[str]:
    if isinstance(part, Shape):
        yield part.text
        yield from part.then
    elif isinstance(part, str):
        yield part
    elif is_dataclass(part):
        for field in fields(part):
            if field.name not in _WORDS:
                yield from _notations(getattr(part, field.name))
    elif isinstance(part, tuple | list):
        for item in part:
            yield from _notations(item)


@cache
def notations(name: str) -> frozenset[str]:
    """All literal texts and shapes of a family's grammar, in the notation of shapes."""
    own = find_family(name)
    texts = (*_notations(own.grammar), *own.markers, *own.stops, *(own.think or ()))
    return frozenset(filter(None, texts))


def _loose(notation: str) -> str:
    """A pattern for a marker; its holes match anything but angle brackets."""
    return r"[^<>]*?".join(map(re.escape, HOLE.split(notation)[::2]))


@cache
def framing(name: str, *, calls: bool) -> tuple[str, str] | None:
    """Patterns for the text that is allowed between the blocks of a turn without calls, and for a
    marker that is cut off at its end; None if messages have headers."""
    grammar = find_family(name).grammar
    if not isinstance(grammar, Markup):
        return None
    markers = {*grammar.tails, *grammar.stops}
    markers.update(text for pair in (*grammar.think, *grammar.frames) for text in pair)
    heads = set()
    if calls:
        markers.update(grammar.call_tokens)
        markers.update(section.text for section in grammar.empty_sections)
        heads = {call.shape.head for call in grammar.calls}
    heads |= {HOLE.split(marker)[0] for marker in markers}
    # Up to its first bracket a marker is unambiguous: truncated after it, it is still not text.
    heads = {head[: head.find(">") + 1] or head for head in heads}
    whole = "|".join(map(_loose, sorted(markers, key=len, reverse=True)))
    cut = "|".join(map(re.escape, heads)) or "(?!)"
    return rf"(?:[ \t\r\n]|{whole})*", rf"(?:(?:{cut})[\s\S]*)?"


@cache
def dropped(name: str, *, reasoning: bool) -> str:
    """A pattern for markers, any number of them, that are dropped inside a block: those that open
    reasoning again, control tokens of calls, and closers after a call that cannot be read."""
    grammar = find_family(name).grammar
    markers = [*getattr(grammar, "call_tokens", ())]
    if isinstance(grammar, Markup):
        markers += grammar.tails
        markers += [marker for pair in grammar.think for marker in pair[not reasoning :]]
    return f"(?:{'|'.join(map(_loose, markers))})*" if markers else ""
