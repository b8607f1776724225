"""Marks data (the text of users, files and tools) so that no control token is made of it. Pure.

A prompt is one text, in which a template's `<|im_end|>` and the same characters in a file look
alike. So data is marked before it is rendered: in every place where it spells a control token, or
could be a piece of one, one character is replaced by a lone surrogate that stands for it. The
marked text has the same length, blanks, quotes and line breaks, so that templates strip, slice,
split and escape it as before. `DataMarks.pieces` finds the control tokens that the data spells and
restores their text; `Encoder` encodes them as ordinary text.

No text can hold a lone surrogate otherwise: no tokenizer takes one, and data that has any gets
U+FFFD instead.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby
from operator import is_, itemgetter
from typing import Any

from msgspec import Struct

from services.runtime.long_work import long_so_far, long_work
from services.tokenization.segments import alternatives

_ASCII = 0xDC00
"""The mark of an ASCII character is this number and its code."""
_OTHER = 0xDC80
"""The marks of other characters are numbered from here."""
_MAX_OTHER = 0xE000 - _OTHER
_JSON_BLANKS = r"(?:\s|\\[fnrt]|\\u001[c-f])*"
_JSON_BLANKS_BACKWARDS = r"(?:\s|[fnrt]\\|[c-f]100u\\)*"
LOOP_MARKS = 256
"""Limit of marks in a text that is cut into pieces on the event loop."""
LOOP_CHARS = 65_536
"""Limit of a text that is read character by character on the event loop."""
_MARK = re.compile("[\udc00-\udfff]")
_ENCODED_MARK = re.compile(b"\xed[\xb0-\xbf][\x80-\xbf]")
"""A mark in UTF-8. That all begin with one byte makes the search several times as fast."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which tokenizers refuse."""
    return _SURROGATE.sub("\ufffd", text) if has_surrogates(text) else text


def has_surrogates(text: str) -> bool:
    """Whether the text holds lone surrogates, marks included."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class Piece(Struct, frozen=True):
    """A part of a prompt's text."""

    text: str
    data: bool = False
    """The text is a control token that data spells."""


class DataMarker:
    """Marks strings. Thread-safe."""

    def __init__(
        self,
        tokens: Collection[str],
        marks: dict[str, str],
        *,
        infixes: Collection[str],
        names: Collection[str],
        handled: Collection[str],
    ) -> None:
        """`tokens`: the control tokens; `marks`: the mark of each character; `infixes`: middles of
        control tokens that a template may complete; `names` and `handled`: as in `DataMarks`."""
        self._marks = marks
        words = sorted(tokens)
        self._token = _pattern_of(words)
        # A pattern is ten times as fast if all its matches begin with the same character.
        self._by_first = tuple(_patterns_by_first(words).items())
        self._beginnings = set(chain.from_iterable(map(_beginnings, words)))
        self._ends = set(chain.from_iterable(map(_ends, words)))
        self._infixes = frozenset(infixes)
        self._names = frozenset(names)
        self._longest_name = max(map(len, names), default=0)
        self._first = tuple(sorted({word[0] for word in words}))
        self._last = tuple(sorted({word[-1] for word in words}))
        self._longest = max(map(len, words), default=0)
        self._edges = {word[_mark_at(word)] for word in words} | set(self._last)
        hints = set(self._first)
        self._handled: re.Pattern[str] | None = None
        if handled:
            longest_first = sorted(handled, key=len, reverse=True)
            self._handled = re.compile("|".join(map(re.escape, longest_first)))
            hints |= self._edges
        self._hints = tuple(sorted(hints))
        """Text without any of these characters needs marks only at its ends."""
        self._in_json = _json_patterns(words, self._infixes)

    def mark(self, text: str) -> str:
        """The marked text; the same object where nothing is to be marked."""
        if not self._by_first or self._is_plain(text):
            return text
        marked = self._mark(text)
        return text if marked == text else marked

    def is_clean(self, json_text: str) -> bool:
        """Whether this JSON needs no marks. False where that is not certain. Much faster than
        `mark_json`."""
        if self._handled is not None and self._handled.search(json_text):
            return False
        patterns, reversed_patterns = self._in_json
        if any(pattern.search(json_text) for pattern in patterns):
            return False
        backwards = json_text[::-1]
        return not any(pattern.search(backwards) for pattern in reversed_patterns)

    def _is_plain(self, text: str) -> bool:
        """Whether the text needs no marks; False where that is not certain. Searching one character
        is thirty times as fast as a pattern."""
        if not text.isascii():
            return False
        for hint in self._hints:
            if hint in text:
                return False
        for last in self._last:
            if last in text and last in text.strip()[: self._longest]:
                return False
        return not self._infixes or text.strip() not in self._infixes

    def _mark(self, text: str) -> str:
        text = replace_surrogates(text)
        if self._handled is not None and self._handled.search(text):
            text = self._mark_all(text)
        if any(first in text and pattern.search(text) for first, pattern in self._by_first):
            while self._token.search(text):  # more than once where tokens overlap
                text = self._token.sub(self._marked_token, text)
        return self._mark_ends(text)

    def _marked_token(self, token: re.Match[str]) -> str:
        long_so_far()
        return self._marked(token[0])

    def mark_json(self, value: Any) -> Any:
        """JSON data with every string marked, keys too; the same object where nothing is to be
        marked."""
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, dict):
            long_so_far()
            marked = {self.mark(key): self.mark_json(item) for key, item in value.items()}
            same = all(map(is_, marked, value)) and all(map(is_, marked.values(), value.values()))
            return value if same else marked
        if isinstance(value, list):
            items = [self.mark_json(item) for item in value]
            return value if all(map(is_, items, value)) else items
        return value

    def _mark_ends(self, text: str) -> str:
        """Marks what a template could complete to a control token: the beginning of one at the
        text's end, the end of one at its beginning, and a middle after the template's own
        beginning. A template may strip blanks around the text."""
        bare = text.strip()
        if len(bare) <= self._longest_name and bare in self._names:
            return text
        head = bare[: self._longest]
        tail = bare[-self._longest :]
        start = len(text) - len(text.lstrip())
        end = start + len(bare)
        places: list[tuple[int, int]] = []
        if len(bare) <= self._longest and bare in self._infixes:
            places.append((start, end))
        for first in self._first:
            at = tail.find(first)
            while at >= 0:
                if tail[at:] in self._beginnings:
                    places.append((end - len(tail) + at, end))
                at = tail.find(first, at + 1)
        for last in self._last:
            at = head.find(last)
            while at >= 0:
                if head[: at + 1] in self._ends:
                    places.append((start, start + at + 1))
                at = head.find(last, at + 1)
        for begin, stop in places:
            text = text[:begin] + self._marked(text[begin:stop]) + text[stop:]
        return text

    def _mark_all(self, text: str) -> str:
        """Marks every character with which a control token begins or ends: the template splits this
        text, and may join its pieces with each other."""
        assert self._handled is not None
        pieces: list[str] = []
        at = 0
        if len(text) > LOOP_CHARS:
            long_work()
        for handled in self._handled.finditer(text):
            pieces += [self._mark_edges(text[at : handled.start()]), handled[0]]
            at = handled.end()
        return "".join((*pieces, self._mark_edges(text[at:])))

    def _mark_edges(self, text: str) -> str:
        marks = self._marks
        edges = self._edges
        return "".join(marks.get(char, char) if char in edges else char for char in text)

    def _marked(self, text: str) -> str:
        at = _mark_at(text)
        return text[:at] + self._marks.get(text[at], text[at]) + text[at + 1 :]


class DataMarks:
    """The marks of one model's prompts. Immutable and thread-safe."""

    def __init__(
        self,
        tokens: Iterable[str],
        *,
        literals: Iterable[str] = (),
        names: Iterable[str] = (),
        handled: Iterable[str] = (),
        kept: Collection[str] = (),
    ) -> None:
        """`tokens`: the control tokens. `literals`: the texts and strings of the template, which
        may join with data. `names`: its strings and attributes, which it compares with data; in
        these only whole control tokens are marked. `handled`: strings at which it splits texts.
        `kept`: control tokens that keep their meaning in the assistant's own text."""
        named = [token for token in tokens if token.strip()]
        marks = _marks_of(named)
        self.tokens = frozenset(token for token in named if token[_mark_at(token)] in marks)
        self._letters = {mark: letter for letter, mark in marks.items()}
        self._token = _pattern_of(sorted(self.tokens))
        self._longest = max(map(len, self.tokens), default=0)
        literals = [literal for literal in literals if literal]
        handled = {text for text in handled if text.strip()}
        infixes = _completed(self.tokens, literals)
        names = set(names)
        self.data = DataMarker(self.tokens, marks, infixes=infixes, names=names, handled=handled)
        """Marks the text of users, tools and instructions."""
        self.assistant = self.data
        """Marks the text of the assistant's own history."""
        if kept:
            rest = self.tokens - set(kept)
            self.assistant = DataMarker(rest, marks, infixes=infixes, names=names, handled=handled)

    def plain(self, text: str) -> str:
        """The text without marks: what the template renders for unmarked data."""
        return self._plain(text) if has_surrogates(text) else text

    def pieces(self, text: str) -> list[Piece]:
        """A rendered text, without marks, in pieces that are encoded separately: control tokens
        that data spells, and the text between them. Mostly one piece."""
        plain = self._plain(text)
        spans = self._spans(text, plain)
        pieces: list[Piece] = []
        at = 0
        for start, end, data in spans:
            pieces.append(Piece(plain[at:start]))
            if data:
                pieces.append(Piece(plain[start:end], True))
            at = end
        pieces.append(Piece(plain[at:]))
        return [piece for piece in pieces if piece.text]

    def _spans(self, text: str, plain: str) -> list[tuple[int, int, bool]]:
        """The control tokens that data spells, in order, and empty spans where a control token of
        the template begins or ends that would otherwise join with data. Linear in the text between
        the first and the last mark."""
        marked = [mark.start() for mark in _MARK.finditer(text)]
        if not marked:
            return []
        if len(marked) > LOOP_MARKS:
            long_work()
        low = max(marked[0] - 2 * self._longest, 0)
        high = min(marked[-1] + 2 * self._longest, len(text))
        spelled: list[tuple[int, int, bool]] = []
        bounds: set[int] = set()
        at = low
        for control in self._token.finditer(text, low, high):
            spelled.extend(self._spelled(plain, at, control.start()))
            bounds.update(control.span())
            at = control.end()
        spelled.extend(self._spelled(plain, at, high))

        bounds.discard(high)
        separators: list[tuple[int, int, bool]] = []
        for joined in self._token.finditer(plain, low, high):
            inside = bounds.intersection(range(joined.start() + 1, joined.end()))
            separators.extend((offset, offset, False) for offset in sorted(inside))
        # Both are in order. Sorting 187,500 of them would hold the interpreter's lock for 0.2 s.
        return list(merge(spelled, separators))

    def _spelled(self, plain: str, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yields the control tokens that data between two of the template's own spells."""
        for token in self._token.finditer(plain, start, end):
            yield (*token.span(), True)

    def _plain(self, text: str) -> str:
        encoded = text.encode("utf-8", "surrogatepass")
        return _ENCODED_MARK.sub(self._letter, encoded).decode("utf-8", "surrogatepass")

    def _letter(self, mark: re.Match[bytes]) -> bytes:
        """The character that a mark stands for, both in UTF-8."""
        letter = self._letters.get(mark[0].decode("utf-8", "surrogatepass"), "\ufffd")
        return letter.encode()


def _mark_at(text: str) -> int:
    """The offset of the character that is marked: not a blank, and one that templates and JSON do
    not change."""

    def rank(offset: int) -> tuple[bool, bool, bool]:
        char = text[offset]
        return char.isspace(), not char.isascii(), char.isalnum() or char in "\"\\'"

    return min(range(len(text)), key=rank)


def _json_patterns(
    words: Sequence[str], infixes: Collection[str]
) -> tuple[list[re.Pattern[str]], list[re.Pattern[str]]]:
    """Patterns of text that is marked in JSON: control tokens, their beginnings before a quote and
    whole infixes; and, for the text backwards, their ends after a quote. Each begins with one
    character, which makes it fast."""

    escaped = [json.dumps(word, ensure_ascii=False)[1:-1] for word in words]
    beginnings = chain.from_iterable(map(_beginnings, escaped))
    ends = chain.from_iterable(map(_ends, escaped))
    infixes_after_quote = [f'"{infix}' for infix in infixes]

    quote = _JSON_BLANKS + '"'
    patterns = [
        *_patterns_by_first(escaped).values(),
        *_patterns_by_first(beginnings, quote).values(),
        *_patterns_by_first(infixes_after_quote, quote).values(),
    ]
    backwards = _patterns_by_first((end[::-1] for end in ends), _JSON_BLANKS_BACKWARDS + '"')
    return patterns, list(backwards.values())


def _pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """A pattern for sorted words, which may be none."""
    return re.compile(alternatives(words) if words else r"(?!)")


def _patterns_by_first(texts: Iterable[str], suffix: str = "") -> dict[str, re.Pattern[str]]:
    """The first characters of the texts, each with a pattern for its texts before `suffix`."""
    by_first = groupby(sorted(set(texts)), key=itemgetter(0))
    return {first: re.compile(alternatives(list(group)) + suffix) for first, group in by_first}


def _beginnings(word: str) -> Iterator[str]:
    """The proper beginnings of a word."""
    return (word[:end] for end in range(1, len(word)))


def _ends(word: str) -> Iterator[str]:
    """The proper ends of a word."""
    return (word[start:] for start in range(1, len(word)))


def _marks_of(tokens: Iterable[str]) -> dict[str, str]:
    """The mark of each ASCII character, and of the others in these tokens."""
    letters = set(chain.from_iterable(tokens))
    others = sorted(letter for letter in letters if not letter.isascii())[:_MAX_OTHER]
    marks = {chr(code): chr(_ASCII + code) for code in range(128)}
    marks |= {letter: chr(_OTHER + number) for number, letter in enumerate(others)}
    return marks


def _completed(tokens: Iterable[str], literals: Sequence[str]) -> set[str]:
    """Texts with which a control token may continue after a text of the template, such as `user`
    after `<|`."""
    longest = max(map(len, tokens), default=0)
    before: set[str] = set()
    for literal in literals:
        sizes = range(1, min(longest, len(literal)) + 1)
        before.update(literal[-size:] for size in sizes)

    infixes: set[str] = set()
    for token in tokens:
        for start in range(1, len(token)):
            if token[:start] in before:
                ends = range(start + 1, len(token))
                infixes.update(token[start:end].strip() for end in ends)
    return infixes - {""}
