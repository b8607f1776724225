"""Lists the tokens with which a model may write a set of markers, however it splits them. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

OTHER = "\0"
"""Stands for text that is no part of a marker."""


def marker_tokens(markers: Iterable[str], texts: Sequence[str], added: Mapping[str, int]) -> dict[str, list[int]]:
    """Maps the text that matters in a token to the tokens with that text.

    `texts`: the text of each id. `added`: the tokenizer's added tokens, at which it splits a text first. A marker is
    found in the concatenation of these texts where the model wrote it. They are shortened: to the piece of a marker at
    a token's start or end, a blank for blanks, and `OTHER` for the rest. An id without an entry is `OTHER`.
    """
    found: dict[str, list[int]] = {}
    pieces = _Pieces(markers, added)
    ids = set(added.values())
    for marker in pieces.whole:
        found[marker] = [added[marker]]
    for token, text in enumerate(texts):
        if token not in ids and (part := pieces.part_of(text)) != OTHER:
            found.setdefault(part, []).append(token)
    return {part: tokens for part, tokens in found.items() if part}


class _Pieces:
    """The pieces of markers, between added tokens."""

    def __init__(self, markers: Iterable[str], added: Mapping[str, int]) -> None:
        split = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or r"(?!)")
        self.whole: set[str] = set()
        """The added tokens among them."""
        self._inside: set[str] = set()
        """What a token may be that lies inside a marker."""
        self._starts: set[str] = set()
        """How a token may end with which a marker begins."""
        self._ends: set[str] = set()
        """How a token may begin with which a marker ends."""
        for marker in markers:
            self.whole.update(split.findall(marker))
            pieces = split.split(marker)
            for at, piece in enumerate(pieces):
                self._inside.update(piece[a:b] for a in range(len(piece)) for b in range(a + 1, len(piece) + 1))
                self._starts.update(piece[:n] for n in range(1, len(piece) + 1) if at == 0)
                self._ends.update(piece[n:] for n in range(len(piece)) if at == len(pieces) - 1)
        self._longest = max(map(len, self._inside), default=0)
        self._first = {text[0] for text in self._ends}
        self._last = {text[-1] for text in self._starts}

    def part_of(self, text: str) -> str:
        """The part of a token's text that matters."""
        if text in self._inside or not text:
            return text
        lengths = range(min(self._longest, len(text)), 0, -1)
        begins = next((n for n in lengths if text[:n] in self._ends), 0) if text[0] in self._first else 0
        ends = next((n for n in lengths if text[-n:] in self._starts), 0) if text[-1] in self._last else 0
        if begins + ends > len(text):
            return text
        return text[:begins] + _shortened(text[begins : len(text) - ends]) + text[len(text) - ends :]


def _shortened(text: str) -> str:
    bare = text.rstrip(" \t\r\n")
    blanks = text[len(bare) :]
    end = "\n" if "\n" in blanks else " " if blanks and not bare else ""
    return (OTHER if bare else "") + end
