"""Finds the first words in which two texts differ, and the kind of text that varies there."""

import re

from services.prompt_diff.change import Variation
from services.tokenization.segments import common_prefix

WORD = 60
"""Characters of a word that are shown where only texts are compared."""
_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?|\d\d?:\d\d|\d\d?/\d\d?/\d{2,4}"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b"
)
_ID = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}|\b[0-9a-f]{8,}\b")
_DIGIT = re.compile(r"\d")
_WORD_START, _WORD_END = re.compile(r"[\w:/.+-]+"), re.compile(r"[\w:/.+-]+\Z")
_VARIATIONS: tuple[tuple[Variation, re.Pattern[str]], ...] = (
    ("date", _DATE),
    ("id", _ID),
    ("number", _DIGIT),
)


def words_at(was: str, now: str) -> tuple[str, str]:
    """Returns the words of both texts at their first difference."""
    offset = len(common_prefix(was, now))
    return _word_at(was, offset), _word_at(now, offset)


def _word_at(text: str, offset: int) -> str:
    start = _WORD_END.search(text, max(0, offset - WORD), offset)
    end = _WORD_START.match(text, offset, offset + WORD)
    word = "".join(part[0] for part in (start, end) if part is not None)
    return word or text[offset : offset + 1]


def variation(was: str, now: str) -> Variation:
    """Returns what kind of text varies where two texts have these words."""
    for kind, pattern in _VARIATIONS:
        if pattern.search(was) and pattern.search(now):
            return kind
    return "text"
