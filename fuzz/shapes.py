"""Lists the literals and shapes of a family's grammar, for properties that concern markers and for
mutations."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final

from services.families import families
from services.families.grammar.markup import Markup
from services.families.grammar.shapes import Shape

_HOLE: Final = re.compile(r"\{(ws|name|key|bare|id|junk|to|word|bool|q|suffix)\}")
FILLED: Final = {
    "ws": ("", "\n", " "),
    "name": ("read_ledger", "nope"),
    "key": ("account", "page", "note"),
    "bare": ("account", "page"),
    "id": ("functions.read_ledger:0", "3", " "),
    "junk": ("", "x"),
    "to": ("functions.read_ledger", "user", "self", "developer"),
    "word": ("string", "number", "json"),
    "bool": ("true", "false"),
    "q": ('"', "'", ""),
    "suffix": ("", ":opensource"),
}
"""Texts that fit the holes of a shape."""
_WORDS: Final = frozenset(
    {"names", "arguments", "ids", "unwrap", "rename", "field", "value", "consumed"}
)
"""Fields of a grammar that hold words inside markers or JSON, and no markers."""


def _notations(part: Any, seen: set[int]) -> Iterator[str]:
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, Shape):
        yield part.text
        yield from part.then
    elif isinstance(part, str):
        yield part
    elif is_dataclass(part):
        for field in fields(part):
            if field.name in _WORDS:
                continue
            yield from _notations(getattr(part, field.name), seen)
    elif isinstance(part, tuple | list):
        for item in part:
            yield from _notations(item, seen)


@cache
def notations(family: str) -> tuple[str, ...]:
    """All literal texts and shapes of a family's grammar, in the notation of shapes."""
    own = families()[family]
    texts = (*_notations(own.grammar, set()), *own.markers, *own.stops, *(own.think or ()))
    return tuple(dict.fromkeys(text for text in texts if text))


@cache
def first_characters(family: str) -> frozenset[str]:
    """The first characters of the family's markers."""
    return frozenset(text[0] for text in notations(family))


@cache
def spellings(family: str) -> tuple[str, ...]:
    """Every notation with its holes filled, several times over."""
    found = [
        _HOLE.sub(lambda hole: FILLED[hole[1]][number % len(FILLED[hole[1]])], text)  # noqa: B023
        for text in notations(family)
        for number in range(4)
    ]
    return tuple(dict.fromkeys(text for text in found if text))


def _loose(notation: str) -> str:
    """A pattern for a marker; its holes match anything but angle brackets."""
    return r"[^<>]*?".join(map(re.escape, _HOLE.split(notation)[::2]))


class Framing:
    """The text that is allowed between the blocks of a turn without calls."""

    def __init__(self, markers: frozenset[str], heads: frozenset[str]) -> None:
        literal = "|".join(map(_loose, sorted(markers, key=len, reverse=True)))
        self._gap = rf"(?:[ \t\r\n]|{literal})*" if literal else r"[ \t\r\n]*"
        cut = "|".join(map(re.escape, sorted(heads)))
        self._end = rf"(?:(?:{cut})[\s\S]*)?" if cut else ""

    def fits(self, raw: str, blocks: list[str]) -> bool:
        """Whether `raw` is the blocks (as patterns) in order with nothing else but markers; at its
        end one may be cut off."""
        pattern = self._gap + "".join(block + self._gap for block in blocks) + self._end
        return re.fullmatch(pattern, raw) is not None


@cache
def dropped(family: str, *, reasoning: bool) -> str:
    """A pattern for markers, any number of them, that are dropped inside a block: those that open
    reasoning again, control tokens of calls, and closers after a call that cannot be read."""
    grammar = families()[family].grammar
    markers = [*getattr(grammar, "call_tokens", ())]
    if isinstance(grammar, Markup):
        markers += grammar.tails
        markers += [marker for pair in grammar.think for marker in pair[not reasoning :]]
    return f"(?:{'|'.join(map(_loose, markers))})*" if markers else ""


@cache
def framing(family: str, calls: bool) -> Framing | None:
    """The family's framing; None if its messages have headers."""
    grammar = families()[family].grammar
    if not isinstance(grammar, Markup):
        return None
    markers = {*grammar.tails, *grammar.stops}
    markers.update(text for pair in grammar.think for text in pair)
    markers.update(text for pair in grammar.frames for text in pair)
    if calls:
        markers.update(grammar.call_tokens)
        markers.update(section.text for section in grammar.empty_sections)
    heads = {call.shape.head for call in grammar.calls if calls} | {
        _HOLE.split(marker)[0] for marker in markers
    }
    # Up to its first bracket a marker is unambiguous: truncated after it, it is still not text.
    return Framing(
        frozenset(markers), frozenset(head[: head.find(">") + 1] or head for head in heads)
    )
