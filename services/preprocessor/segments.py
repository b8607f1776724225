"""Where a text may be cut without changing its tokens, and a store of what was cut out.

A control token stands by itself: the tokenizer takes it out of the raw text before anything else, and handles what is
left on either side piece by piece. So the ids of a text are those of its segments, each from one control token up to
the next, one after the other; and a segment has the same ids in every prompt of every session.
"""

import re
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from sys import getsizeof
from typing import TypeAlias

from tokenizers import AddedToken, Tokenizer

TokenIds: TypeAlias = "array[int]"
"""Token ids, typecode `I`: 52,000 of them are copied in 10 us, where a list takes a millisecond."""


class Cuts:
    """The control tokens at whose start a text may be cut."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(sorted(tokens))
        self._pattern = re.compile(_alternatives(self.tokens)) if self.tokens else None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Cuts":
        """The special tokens of which every occurrence in a text becomes that token, whatever stands around it.

        That is: matched in the raw text (`normalized` False), as part of a word too (`single_word` False), taking no
        white space before it (`lstrip` False), and overlapping with no other token that is matched in the raw text:
        there the leftmost, then the longest match wins. Segments begin with their control token, so that a tokenizer
        which treats the start of a text in its own way (Metaspace's `prepend_scheme: first`) sees none there. A
        tokenizer that takes special tokens for text, or merges at random (BPE dropout), has no cuts.
        """
        if tokenizer.encode_special_tokens or getattr(tokenizer.model, "dropout", None):
            return cls(())
        added = tokenizer.get_added_tokens_decoder().values()
        raw = {token.content for token in added if not token.normalized and token.content}
        return cls(_apart({token.content for token in added if _stands_alone(token)}, raw))

    def __bool__(self) -> bool:
        return self._pattern is not None

    def find(self, text: str, start: int = 0) -> list[int]:
        """The offsets, from `start` on, at which control tokens begin."""
        return [] if self._pattern is None else [match.start() for match in self._pattern.finditer(text, start)]

    def last(self, text: str) -> int:
        """The last offset at which a control token begins; 0 where there is none."""
        size = 4096
        while True:
            start = max(len(text) - size, 0)
            found = self.find(text, start)
            if found or not start:
                return found[-1] if found else 0
            size *= 4

    def split(self, text: str) -> list[str]:
        """The segments. Joined they are the text."""
        bounds = [0, *self.find(text), len(text)]
        return [text[start:end] for start, end in pairwise(bounds) if start < end]


def _stands_alone(token: AddedToken) -> bool:
    content = token.content
    plain = token.special and not (token.normalized or token.lstrip or token.single_word)
    return bool(plain and content and content == content.strip())


def _apart(candidates: set[str], raw: set[str]) -> set[str]:
    """The candidates which no token of `raw` can hide or cut short."""
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
                token for token in starts.get(other[at], ()) if rest.startswith(token) or token.startswith(rest)
            )
    return candidates - hidden


def _alternatives(words: Sequence[str]) -> str:
    """A pattern for sorted words of which none begins another, in the form of a tree: as fast for a thousand."""
    first, last = words[0], words[-1]
    differ = (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    common = first[: next(differ, len(first))]
    if len(words) == 1:
        return re.escape(common)
    groups = groupby((word[len(common) :] for word in words), key=lambda word: word[0])
    return re.escape(common) + "(?:" + "|".join(_alternatives(list(group)) for _, group in groups) + ")"


class SegmentCache:
    """Ids by segment, for tokenizers that are slow. Thread-safe; the segments used least lately go first.

    Two generations: what was used since the last change of generations stays for one more, so that a hit costs one
    look-up and no bookkeeping.
    """

    def __init__(self, encode: Callable[[list[str]], list[TokenIds]], cuts: Cuts, max_bytes: int) -> None:
        """`encode` gives the ids of several texts. Text and ids together take at most `max_bytes`."""
        self._encode = encode
        self._cuts = cuts
        self._limit = max_bytes // 2
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._size = 0
        self._lock = threading.Lock()

    def encode(self, text: str) -> TokenIds:
        """The ids of the text: those that encoding it whole gives."""
        segments = self._cuts.split(text)
        found = [self._young.get(segment) or self._from_old(segment) for segment in segments]
        if missing := list(dict.fromkeys(s for s, ids in zip(segments, found, strict=True) if ids is None)):
            fresh = {segment: ids.tobytes() for segment, ids in zip(missing, self._encode(missing), strict=True)}
            self._keep(fresh)
            found = [fresh[segment] if ids is None else ids for segment, ids in zip(segments, found, strict=True)]
        joined: TokenIds = array("I")
        joined.frombytes(b"".join(ids for ids in found if ids is not None))
        return joined

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return self._size + sum(_weight(segment, ids) for segment, ids in self._old.items())

    def _from_old(self, segment: str) -> bytes | None:
        ids = self._old.get(segment)
        if ids is not None:
            self._keep({segment: ids})
        return ids

    def _keep(self, fresh: dict[str, bytes]) -> None:
        with self._lock:
            for segment, ids in fresh.items():
                weight = _weight(segment, ids)
                if segment in self._young or weight > self._limit:
                    continue
                if self._size + weight > self._limit:
                    self._old, self._young, self._size = self._young, {}, 0
                self._young[segment] = ids
                self._size += weight


def _weight(segment: str, ids: bytes) -> int:
    return 100 + getsizeof(segment) + getsizeof(ids)
