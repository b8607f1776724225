"""Encodes rendered prompts to exactly the ids of the model's tokenizer, and no text twice.

`tokenizers` gives the right ids by definition. `fastokens` is a hundred times as fast, and used where `equality` finds
no difference for this tokenizer. Segments between control tokens are cached, and of a prompt that begins with a
`StablePrefix` only the rest is encoded.
"""

import hashlib
import re
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, TypeAlias

from tokenizers import Tokenizer

from services.tokenization.equality import difference
from services.tokenization.segments import Cuts, SegmentCache, TokenIds

Choice: TypeAlias = Literal["auto", "fastokens", "tokenizers"]
Encode: TypeAlias = Callable[[str], TokenIds]
_SURROGATE = re.compile("[\ud800-\udfff]")

DIGEST_BYTES = 16
"""Length of the hash of a prompt's text."""


@dataclass(eq=False)
class StablePrefix:
    """A text with which several prompts begin, and its ids once they are known. Shared by threads.

    `parent` is a prefix of this text.
    """

    text: str
    parent: "StablePrefix | None" = None
    encoded: tuple[int, TokenIds] | None = field(default=None, repr=False)
    """An offset at which the text may be cut, and the ids of what stands before. Written by `Encoder` alone."""
    trusted: int = 0
    """The encoder's `_trusted` at that time."""
    _hasher: "hashlib.blake2b | None" = field(default=None, repr=False)

    def hashed(self) -> "hashlib.blake2b":
        """A copy of the hash of the text as UTF-8 (lone surrogates included), for the caller to continue."""
        if self._hasher is None:
            parent = self.parent
            hasher = hashlib.blake2b(digest_size=DIGEST_BYTES) if parent is None else parent.hashed()
            start = 0 if parent is None else len(parent.text)
            hasher.update(self.text[start:].encode("utf-8", "surrogatepass"))
            self._hasher = hasher
        return self._hasher.copy()


class FastTokenizer(Protocol):
    """fastokens' tokenizer."""

    def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
        """The ids of the texts as bytes, and their offsets."""


class Encoder:
    """Encodes prompts. Thread-safe; both tokenizers release the interpreter's lock while they work.

    Control tokens in a text become control tokens. No special tokens are added: rendered prompts have them.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], list[TokenIds]],
        *,
        cuts: Cuts,
        fast: FastTokenizer | None = None,
        reason: str = "the tokenizer's own",
        cache_bytes: int = 64 << 20,
    ) -> None:
        """`encode` gives the ids of several texts by `tokenizers`. `cache_bytes` bounds the cache of segments."""
        self.cuts = cuts
        self.reason = reason
        """Why this encoder was chosen."""
        self.failures = 0
        """Texts that the fast encoder refused."""
        self._reference = encode
        self._fast = fast
        self._slow = SegmentCache(encode, cuts, cache_bytes)
        self._lock = threading.Lock()
        self._trusted = 0
        """Grows when ids that were made before must be made again."""

    @classmethod
    def load(cls, tokenizer: Tokenizer, *, choice: Choice = "auto", cache_bytes: int = 64 << 20) -> "Encoder":
        """The encoder of a tokenizer, which must neither pad nor truncate.

        Raises ValueError where `choice` is fastokens and fastokens is not installed or gives other ids.
        """

        def encode(texts: list[str]) -> list[TokenIds]:
            # `encode` holds the interpreter's lock while it works, the batch form does not (tokenizers 0.22).
            return [array("I", found.ids) for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

        cuts = Cuts.of(tokenizer)
        if choice == "tokenizers":
            return cls(encode, cuts=cuts, reason="the operator's choice", cache_bytes=cache_bytes)
        fast, reason = _prove(tokenizer, lambda text: encode([replace_surrogates(text)])[0], cache_bytes)
        if choice == "fastokens" and fast is None:
            raise ValueError(f"fastokens cannot be the tokenizer: {reason}")
        return cls(encode, cuts=cuts, fast=fast, reason=reason, cache_bytes=cache_bytes)

    @property
    def name(self) -> str:
        """The encoder in use: `fastokens` or `tokenizers`."""
        return "tokenizers" if self._fast is None else "fastokens"

    def encode(self, text: str, stable: StablePrefix | None = None) -> TokenIds:
        """The ids of `text`, as `reference` gives them. Lone surrogates become U+FFFD.

        `stable` is a prefix of `text`.
        """
        text = replace_surrogates(text)
        if stable is None or not self.cuts or not text.startswith(stable.text):
            return self._whole(text)
        at, ids = self._head(stable)
        return ids + self._whole(text[at:]) if at else self._whole(text)

    def reference(self, text: str) -> TokenIds:
        """The right ids, without fastokens and without any cache."""
        return self._reference([replace_surrogates(text)])[0]

    def distrust(self, reason: str) -> None:
        """Stops using fastokens or, if it is not in use, cutting. For good."""
        if self._fast is None:
            self.cuts = Cuts(())
            self._slow = SegmentCache(self._reference, self.cuts, 0)
        self._fast, self.reason = None, reason
        self._trusted += 1

    def _head(self, stable: StablePrefix) -> tuple[int, TokenIds]:
        """Where the stable text is cut, and the ids up to there. Two threads may both do the work."""
        if stable.encoded is None or stable.trusted != self._trusted:
            at = self.cuts.last(stable.text)
            stable.encoded = (at, self.encode(stable.text[:at], _within(stable.parent, at)))
            stable.parent, stable.trusted = None, self._trusted
        return stable.encoded

    def _whole(self, text: str) -> TokenIds:
        fast = self._fast
        if fast is None:
            return self._slow.encode(text)
        try:
            return _encode_fast(fast, text)
        except Exception:  # fastokens documents no types; a known case is a limit of its pattern engine
            with self._lock:
                self.failures += 1
            return self._slow.encode(text)


def _encode_fast(fast: FastTokenizer, text: str) -> TokenIds:
    ids: TokenIds = array("I")
    ids.frombytes(fast.encode_batch_flat([text])[0])
    return ids


def _within(stable: StablePrefix | None, end: int) -> StablePrefix | None:
    return stable if stable is not None and len(stable.text) <= end else None


def replace_surrogates(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which tokenizers refuse."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _prove(tokenizer: Tokenizer, reference: Encode, cache_bytes: int) -> tuple[FastTokenizer | None, str]:
    """fastokens for this tokenizer, if it is installed and gives equal ids, and the reason."""
    try:
        import fastokens
    except ImportError:
        return None, "fastokens is not installed"
    try:
        fast = fastokens.Tokenizer.from_json_str(tokenizer.to_str())
        fast.no_padding()
        fast.no_truncation()
        fast.enable_segment_cache(cache_bytes)
    except Exception as error:  # fastokens documents no types
        return None, f"fastokens does not read this tokenizer: {error}"
    found = difference(tokenizer, reference, partial(_encode_fast, fast))
    return (fast, "equal to tokenizers in all trials") if found is None else (None, f"fastokens differs: {found}")
