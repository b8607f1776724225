"""Cuts texts at control tokens without changing their ids, and caches the ids of the segments.

A tokenizer takes control tokens out of the raw text first and encodes what is left on either side
separately. So the ids of a text are those of its segments, each from one control token up to the
next, and a segment has the same ids in every prompt of every session.
"""

import re
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from sys import getsizeof
from typing import TypeAlias, TypeVar

from cachetools import LRUCache
from tokenizers import AddedToken, Tokenizer

TokenIds: TypeAlias = "array[int]"
"""Token ids, typecode `I`: 52,000 of them are copied in 10 us, where a list takes a millisecond."""
EncodeText: TypeAlias = Callable[[str], TokenIds]
EncodeTexts: TypeAlias = Callable[[list[str]], list[TokenIds]]

_ENTRY_BYTES = 200
"""Bytes of an entry of the cache besides segment and ids, about."""

S = TypeVar("S", str, "array[int]")


class Cuts:
    """Control tokens; a text may be cut before each of them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(sorted(tokens))
        self._pattern = re.compile(alternatives(self.tokens)) if self.tokens else None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Cuts":
        """The special tokens that a tokenizer recognizes in every context.

        Such a token is matched in the raw text (`normalized` False), also within words
        (`single_word` False), without white space before it (`lstrip` False), and overlaps with no
        other token that is matched in the raw text: there the leftmost, then the longest match
        wins. Segments begin with their control token, so that a tokenizer with a special rule for
        the start of a text (Metaspace's `prepend_scheme: first`) does not apply it there. A
        tokenizer that reads special tokens as text, or merges at random (BPE dropout), has no cuts.
        """
        if tokenizer.encode_special_tokens or getattr(tokenizer.model, "dropout", None):
            return cls(())
        added = tokenizer.get_added_tokens_decoder().values()
        raw = {token.content for token in added if not token.normalized and token.content}
        return cls(
            _without_overlaps({token.content for token in added if _stands_alone(token)}, raw)
        )

    def __bool__(self) -> bool:
        return self._pattern is not None

    def find(self, text: str, start: int = 0) -> list[int]:
        """The offsets, from `start` on, at which control tokens begin."""
        if self._pattern is None:
            return []
        return [match.start() for match in self._pattern.finditer(text, start)]

    def last(self, text: str) -> int:
        """The last offset at which a control token begins; 0 where there is none."""
        size = 4096
        while True:
            start = max(len(text) - size, 0)
            places = self.find(text, start)
            if places or not start:
                return places[-1] if places else 0
            size *= 4

    def split(self, text: str) -> list[str]:
        """The segments. Joined they are the text."""
        bounds = [0, *self.find(text), len(text)]
        return [text[start:end] for start, end in pairwise(bounds) if start < end]


def _stands_alone(token: AddedToken) -> bool:
    content = token.content
    plain = token.special and not (token.normalized or token.lstrip or token.single_word)
    return bool(plain and content and content == content.strip())


def _without_overlaps(candidates: set[str], raw: set[str]) -> set[str]:
    """The candidates that no other token of `raw` can overlap."""
    starts: dict[str, list[str]] = {}
    for token in candidates:
        starts.setdefault(token[0], []).append(token)
    hidden: set[str] = set()
    ordered = sorted(raw)
    for token, following in pairwise(ordered):
        if following.startswith(token):
            hidden.add(token)
    for other in raw:
        for at in range(1, len(other)):
            rest = other[at:]
            hidden.update(
                token
                for token in starts.get(other[at], ())
                if rest.startswith(token) or token.startswith(rest)
            )
    return candidates - hidden


def common_prefix(first: S, second: S) -> S:
    """The common beginning of two sequences. Slices are compared: 16 comparisons for 50,000
    elements, without a loop over elements in Python."""
    if first[: len(second)] == second:
        return second
    low = 0
    high = min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return first[:low]


def alternatives(words: Sequence[str]) -> str:
    """A pattern for sorted words, as a prefix tree: equally fast for a thousand words. The longest
    word matches."""
    common = common_prefix(words[0], words[-1])
    rest = [word[len(common) :] for word in words if len(word) > len(common)]
    if not rest:
        return re.escape(common)
    groups = groupby(rest, key=itemgetter(0))
    tree = "(?:" + "|".join(alternatives(list(group)) for _, group in groups) + ")"
    if len(rest) < len(words):  # the common beginning is a word itself
        tree += "?"
    return re.escape(common) + tree


class SegmentCache:
    """Ids by segment, for slow tokenizers. Thread-safe; the least recently used segments are
    evicted first."""

    def __init__(self, encode: EncodeTexts, cuts: Cuts, max_bytes: int) -> None:
        """`max_bytes` bounds segments and ids together."""
        self._encode = encode
        self._cuts = cuts
        self._cache: LRUCache[str, tuple[bytes, int]] = LRUCache(max_bytes, itemgetter(1))
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return int(self._cache.currsize)

    def encode(self, text: str) -> TokenIds:
        """The ids of the text: those of encoding it whole."""
        segments = self._cuts.split(text)
        packed = self._cached(segments)
        missing = [segment for segment in dict.fromkeys(segments) if segment not in packed]
        if missing:
            ids = map(array.tobytes, self._encode(missing))
            encoded = dict(zip(missing, ids, strict=True))
            self._store(encoded)
            packed |= encoded

        joined: TokenIds = array("I")
        joined.frombytes(b"".join(packed[segment] for segment in segments))
        return joined

    def _cached(self, segments: Iterable[str]) -> dict[str, bytes]:
        """The packed ids of the segments that are cached."""
        packed: dict[str, bytes] = {}
        with self._lock:
            for segment in segments:
                entry = self._cache.get(segment)
                if entry is not None:
                    packed[segment] = entry[0]
        return packed

    def _store(self, encoded: Mapping[str, bytes]) -> None:
        with self._lock:
            for segment, packed in encoded.items():
                size = _ENTRY_BYTES + getsizeof(segment) + getsizeof(packed)
                if size <= self._cache.maxsize:
                    self._cache[segment] = packed, size
