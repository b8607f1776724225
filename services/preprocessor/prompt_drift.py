"""Finds what changes at the front of a session's prompts, and what that costs. Pure.

Each prompt of an agent should begin with the one before. Where it does not, the engine computes everything behind the
first difference again, with every turn if the difference is a clock.
"""

import re
import threading
from collections.abc import Sequence
from typing import Literal, TypeAlias

from cachetools import LRUCache
from msgspec import Struct

from services.preprocessor.prompt.next_prefix import common_prefix
from services.tokenization.segments import TokenIds

Cause: TypeAlias = Literal["tools", "date", "id", "number", "text", "history"]
"""The tool list; a date or time; an identifier; a number; other text before the first answer; anything behind it, such
as reasoning that the template drops, or a history that its client has changed."""

SHOWN = 60
"""Characters of a difference that are reported."""
_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?|\d\d?:\d\d|\d\d?/\d\d?/\d{2,4}"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b"
)
_ID = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}|\b[0-9a-f]{8,}\b")
_DIGIT = re.compile(r"\d")
_WORD_CHARS = re.compile(r"[\w:/.+-]")
_CAUSES: tuple[tuple[Cause, re.Pattern[str]], ...] = (("date", _DATE), ("id", _ID), ("number", _DIGIT))


class Difference(Struct, frozen=True):
    """The first difference between a prompt and the one before it in its session."""

    cause: Cause
    tokens: int
    """Tokens of the earlier prompt that are computed again."""
    was: str
    now: str


class _LastPrompt(Struct, frozen=True):
    text: str
    head: int
    """Characters of the session's first prompt."""
    ids: TokenIds
    tools: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.text) + 4 * len(self.ids) + 512


class PromptWatch:
    """Compares prompts with the last one of their session. Thread-safe; bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._last: LRUCache[str, _LastPrompt] = LRUCache(max_bytes, lambda prompt: prompt.size)
        self._lock = threading.Lock()

    def look(self, session: str, text: str, end: int, ids: TokenIds, tools: Sequence[str]) -> Difference | None:
        """The difference to the last prompt of the session; None where there is none, or no last prompt.

        `end`: the characters of `text` with which the next prompt should begin: all but the opening of the answer.
        `tools`: the names of the tools at the front.
        """
        with self._lock:
            before = self._last.pop(session, None)
            now = _LastPrompt(text[:end], end if before is None else before.head, ids, tuple(tools))
            if now.size <= self._last.maxsize:
                self._last[session] = now
        if before is None or text.startswith(before.text):
            return None
        at = len(common_prefix(before.text, text))
        tokens = len(before.ids) - len(common_prefix(before.ids, ids))
        was, is_now = _word_at(before.text, at), _word_at(text, at)
        if at >= before.head:
            cause: Cause = "history"
        elif before.tools != now.tools:
            return Difference("tools", tokens, *_changed_tools(before.tools, now.tools))
        else:
            cause = next((cause for cause, found in _CAUSES if found.search(was) and found.search(is_now)), "text")
        return Difference(cause, tokens, was[:SHOWN], is_now[:SHOWN])


def _word_at(text: str, at: int) -> str:
    """The word, or the date, at an offset."""
    start = end = at
    while start > 0 and at - start < SHOWN and _WORD_CHARS.match(text[start - 1]):
        start -= 1
    while end < len(text) and end - at < SHOWN and _WORD_CHARS.match(text[end]):
        end += 1
    return text[start:end] or text[at : at + 1]


def _changed_tools(was: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """The tools that went, and those that came, with their places."""
    gone = [name for name in was if name not in now]
    come = [f"{name} ({place + 1}. of {len(now)})" for place, name in enumerate(now) if name not in was]
    if not gone and not come:
        return "tools in one order", "the same in another"
    return ", ".join(gone)[:SHOWN], ", ".join(come)[:SHOWN]
