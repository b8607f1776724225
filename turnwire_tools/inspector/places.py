"""Finds the tokens of each item in a prompt: exactly by the text of the prompt's tokens, else by
length. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from services.tokenization.detokenizer import Vocabulary
from turnwire_tools.inspector.conversation import Item

NEEDLE = 96
"""Bytes of a text that are searched for; templates may write the rest in another form."""


class Place(Struct, frozen=True):
    """Where an item is in a prompt."""

    start: int
    """The first token."""
    tokens: int
    exact: bool
    """False: estimated by length."""


class PromptText(Struct, frozen=True):
    """The text of a stretch of a prompt."""

    data: bytes
    ends: list[int]
    """The end of each token in `data`."""
    first: int = 0
    """The place of the first of these tokens in the prompt."""

    @classmethod
    def of(cls, ids: Sequence[int], vocabulary: Vocabulary, first: int = 0) -> "PromptText":
        """The text of the tokens from `first` on."""
        pieces = [vocabulary.bytes_of(token) for token in ids[first:]]
        return cls(b"".join(pieces), list(accumulate(map(len, pieces))), first)

    def token_at(self, byte: int) -> int:
        """The token with a byte."""
        return self.first + bisect_right(self.ends, byte)


def estimated(items: Sequence[Item], start: int, end: int) -> list[Place]:
    """Divides the tokens from `start` to `end` among items by the lengths of their texts."""
    lengths = list(accumulate((item.length for item in items), initial=0))
    total = lengths[-1] or 1
    bounds = [start + (end - start) * length // total for length in lengths]
    return [Place(at, until - at, exact=False) for at, until in pairwise(bounds)]


def located(items: Sequence[Item], estimates: Sequence[Place], text: PromptText) -> list[Place]:
    """The places of items in the text of a prompt, which has them in this order; where one is not
    found, its estimate stays. A tool's place reaches to the next item, because templates write its
    schema in their own form; that of the last one reaches as far beyond its text as the place of
    the one before."""
    starts = list(_starts(items, text.data))
    places: list[Place] = []
    beyond = 0
    for at, (item, start, estimate) in enumerate(zip(items, starts, estimates, strict=True)):
        if start is None:
            places.append(estimate)
            continue
        end = start + len(item.text.strip().encode())
        following = _next(starts, at)
        if item.kind == "tool":
            beyond = beyond if following is None else max(0, following - end)
            end += beyond
        elif following is not None and not text.data.startswith(item.text.strip().encode(), start):
            end = following
        places.append(_place(start, end, text, exact=item.kind != "tool"))
    return places


def scaled(places: Sequence[Place], tokens: int) -> list[Place]:
    """Places that take this many tokens together, in the proportions of these."""
    sums = list(accumulate((place.tokens for place in places), initial=0))
    total = sums[-1] or 1
    bounds = [round(tokens * before / total) for before in sums]
    return [
        Place(place.start, until - at, exact=False)
        for place, (at, until) in zip(places, pairwise(bounds), strict=True)
    ]


def _starts(items: Iterable[Item], data: bytes) -> Iterable[int | None]:
    """The first byte of each item's text."""
    at = 0
    for item in items:
        needle = item.text.strip()[:NEEDLE].encode()
        found = data.find(needle, at) if needle else -1
        if found < 0 and item.kind == "tool":
            found = data.find(item.name.encode(), at)
        yield found if found >= 0 else None
        if found >= 0:
            at = found + len(needle)


def _next(starts: Sequence[int | None], at: int) -> int | None:
    return next((start for start in starts[at + 1 :] if start is not None), None)


def _place(start: int, end: int, text: PromptText, *, exact: bool) -> Place:
    end = min(end, len(text.data))
    first = text.token_at(start)
    last = text.token_at(max(start, end - 1))
    return Place(first, last + 1 - first, exact)
