"""Changes between two prompts, and the excerpts that show them."""

from typing import Literal, TypeAlias

from msgspec import Struct

from services.tokenization.segments import common_prefix

ChangeKind: TypeAlias = Literal[
    "tools", "system", "settings", "message", "reasoning", "answer", "history"
]
Variation: TypeAlias = Literal["date", "id", "number", "text"]

SHOWN = 160
"""Characters of a change that are shown, on each side."""
BEFORE = 40
"""Characters before the first difference among them."""


class Change(Struct, frozen=True, omit_defaults=True):
    """One change between two prompts."""

    kind: ChangeKind
    where: str
    """The changed part: `the tool Bash`, `system text 2`, `message 3 (user)`."""
    was: str = ""
    now: str = ""
    varies: Variation | Literal[""] = ""
    """The kind of text that varies in instructions."""


def replaced(kind: ChangeKind, where: str, was: str, now: str) -> Change:
    """Returns a change of a whole text, with the beginnings of both."""
    return Change(kind, where, was[:SHOWN], now[:SHOWN])


def edited(
    kind: ChangeKind, where: str, was: str, now: str, varies: Variation | Literal[""] = ""
) -> Change:
    """Returns a change within a text, with the passage that differs and a few characters around
    it."""
    same = len(common_prefix(was, now))
    same_after = len(common_prefix(was[same:][::-1], now[same:][::-1]))
    start = max(0, same - BEFORE)
    left_out = max(0, same_after - BEFORE)
    old = _excerpt(was, start, left_out)
    new = _excerpt(now, start, left_out)
    return Change(kind, where, old, new, varies)


def _excerpt(text: str, start: int, left_out: int) -> str:
    """Returns the text from `start` on, without the last `left_out` characters, and with signs for
    what is missing."""
    excerpt = text[start : len(text) - left_out][:SHOWN]
    before = "…" if start else ""
    after = "…" if left_out else ""
    return before + excerpt + after
