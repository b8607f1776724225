"""What varies at the front of a session's prompts, and what it costs.

An agent's prompts should each begin with the one before. Where one does not, everything behind the first difference is
computed again, by every turn if it is a clock. This compares the prompts of a session and names the culprit. Pure.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from services.preprocessor.common_prefix import common_prefix
from services.preprocessor.segments import TokenIds

Cause: TypeAlias = Literal["tools", "date", "id", "number", "text", "history"]
"""The tool list; a date or time; an identifier; a number; other text before the first answer; anything behind it, such
as reasoning that the template drops, or a history that its client has changed."""

SHOWN = 60
"""Characters of a difference that are told."""
_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?|\d\d?:\d\d|\d\d?/\d\d?/\d{2,4}"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b"
)
_ID = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}|\b[0-9a-f]{8,}\b")
_WORD_CHARS = re.compile(r"[\w:/.+-]")


class Difference(Struct, frozen=True):
    """Where a prompt parts from the one before it in its session."""

    cause: Cause
    tokens: int
    """Of the earlier prompt, which are computed again because of it."""
    was: str
    now: str


class _Seen(Struct, frozen=True):
    text: str
    front: int
    """Characters of the session's first prompt."""
    ids: TokenIds
    tools: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.text) + 4 * len(self.ids) + 512


class PromptWatch:
    """The last prompt of each session. Thread-safe; the sessions asked for least lately are forgotten first."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def look(self, session: str, text: str, end: int, ids: TokenIds, tools: Sequence[str]) -> Difference | None:
        """Compares a prompt with the last one of its session; None where it begins with that, or is the first.

        `end`: the characters of `text` that the next prompt should begin with: all but what opens the answer. `tools`:
        the names of the tools at the front.
        """
        with self._lock:
            before = self._seen.pop(session, None)
            now = _Seen(text[:end], end if before is None else before.front, ids, tuple(tools))
            self._seen[session] = now
            self._size += now.size - (before.size if before is not None else 0)
            while self._size > self._limit and self._seen:
                self._size -= self._seen.popitem(last=False)[1].size
        if before is None or text.startswith(before.text):
            return None
        at = len(common_prefix(before.text, text))
        tokens = len(before.ids) - len(common_prefix(before.ids, ids))
        was, is_now = _around(before.text, at), _around(text, at)
        if before.tools != now.tools and at < before.front:
            return Difference("tools", tokens, *_changed(before.tools, now.tools))
        cause = _cause(was, is_now) if at < before.front else "history"
        return Difference(cause, tokens, was[:SHOWN], is_now[:SHOWN])


def _around(text: str, at: int) -> str:
    """The word, or the date, that stands at a place."""
    start = end = at
    while start > 0 and at - start < SHOWN and _WORD_CHARS.match(text[start - 1]):
        start -= 1
    while end < len(text) and end - at < SHOWN and _WORD_CHARS.match(text[end]):
        end += 1
    return text[start:end] or text[at : at + 1]


def _cause(was: str, now: str) -> Cause:
    for cause, pattern in (("date", _DATE), ("id", _ID)):
        if pattern.search(was) and pattern.search(now):
            return "date" if cause == "date" else "id"
    return "number" if re.search(r"\d", was) and re.search(r"\d", now) else "text"


def _changed(was: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """What went, and what came with its place."""
    gone = [name for name in was if name not in now]
    come = [f"{name} ({place + 1}. of {len(now)})" for place, name in enumerate(now) if name not in was]
    if not gone and not come:
        return "tools in one order", "the same in another"
    return ", ".join(gone)[:SHOWN], ", ".join(come)[:SHOWN]
