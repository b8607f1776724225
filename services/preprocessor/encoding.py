"""The exact ids of rendered prompts, fast: a quicker encoder where it proves equal, and nothing encoded twice.

Two encoders give ids: `tokenizers`, whose ids are right by definition, and `fastokens`, which is a hundred times as
fast and is taken where `equality` finds no difference on this very tokenizer. Neither begins anew with every prompt:
segments between control tokens are kept, and of a prompt that begins with a `Stable` text only the rest is looked at.
"""

import hashlib
import re
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from tokenizers import Tokenizer

from services.parser.turn_keys import DIGEST_BYTES
from services.preprocessor.equality import difference
from services.preprocessor.segments import Cuts, SegmentCache, TokenIds

Choice: TypeAlias = Literal["auto", "fastokens", "tokenizers"]
Encode: TypeAlias = Callable[[str], TokenIds]
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(eq=False)
class Stable:
    """A text with which several prompts begin, and its ids once they are known. Shared by threads.

    `parent` is one with which this text begins itself.
    """

    text: str
    parent: "Stable | None" = None
    encoded: tuple[int, TokenIds] | None = field(default=None, repr=False)
    """An offset at which the text may be cut, and the ids of what stands before. Written by `Encoder` alone."""
    trusted: int = 0
    """What the encoder trusted then."""
    _hasher: "hashlib.blake2b | None" = field(default=None, repr=False)

    def hashed(self) -> "hashlib.blake2b":
        """A hash of 16 bytes over the text as UTF-8 (half surrogate pairs included), to be gone on with."""
        if self._hasher is None:
            parent = self.parent
            hasher = hashlib.blake2b(digest_size=DIGEST_BYTES) if parent is None else parent.hashed()
            start = 0 if parent is None else len(parent.text)
            hasher.update(self.text[start:].encode("utf-8", "surrogatepass"))
            self._hasher = hasher
        return self._hasher.copy()


class _Fast(Protocol):
    def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]: ...


class Encoder:
    """Encodes prompts. Thread-safe; both encoders release the interpreter's lock while they work.

    Control tokens in a text become control tokens, and no other special token is added: rendered prompts hold what
    they need.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], list[TokenIds]],
        *,
        cuts: Cuts,
        fast: _Fast | None = None,
        reason: str = "the tokenizer's own",
        cache_bytes: int = 64 << 20,
    ) -> None:
        """`encode` gives the right ids of several texts, `fast` the same ids sooner. `load` makes both of a tokenizer.

        `cache_bytes` bounds what is kept of earlier prompts.
        """
        self.cuts = cuts
        self.reason = reason
        """Why this encoder."""
        self.failures = 0
        """Texts that the fast encoder refused."""
        self._reference = encode
        self._fast = fast
        self._slow = SegmentCache(encode, cuts, cache_bytes)
        self._lock = threading.Lock()
        self._trusted = 0
        """Counts what was distrusted: ids that were made before are made again."""

    @classmethod
    def load(cls, tokenizer: Tokenizer, *, choice: Choice = "auto", cache_bytes: int = 64 << 20) -> "Encoder":
        """The encoder of a tokenizer, which must neither pad nor truncate.

        Raises ValueError where `choice` is fastokens and that is not installed or not equal.
        """

        def encode(texts: list[str]) -> list[TokenIds]:
            # `encode` holds the interpreter's lock while it works, the batch form does not (tokenizers 0.22).
            return [array("I", found.ids) for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

        cuts = Cuts.of(tokenizer)
        if choice == "tokenizers":
            return cls(encode, cuts=cuts, reason="the operator's choice", cache_bytes=cache_bytes)
        fast, reason = _prove(tokenizer, lambda text: encode([_clean(text)])[0], cache_bytes)
        if choice == "fastokens" and fast is None:
            raise ValueError(f"fastokens cannot be the tokenizer: {reason}")
        return cls(encode, cuts=cuts, fast=fast, reason=reason, cache_bytes=cache_bytes)

    @property
    def name(self) -> str:
        """The encoder in use: `fastokens` or `tokenizers`."""
        return "tokenizers" if self._fast is None else "fastokens"

    def encode(self, text: str, stable: Stable | None = None) -> TokenIds:
        """The ids of `text`, as `reference` gives them. Half surrogate pairs are read as U+FFFD.

        `stable` is a text with which `text` begins.
        """
        text = _clean(text)
        if stable is None or not self.cuts or not text.startswith(stable.text):
            return self._whole(text)
        at, ids = self._head(stable)
        return ids + self._whole(text[at:]) if at else self._whole(text)

    def encode_tail(self, text: str, start: int) -> TokenIds:
        """The ids of `text[start:]` as they stand in the whole; `start` is one of `safe_points(text)`."""
        return self._whole(_clean(text[start:]))

    def safe_points(self, text: str, start: int = 0) -> list[int]:
        """Offsets from `start` on at which the text may be cut: the ids of both sides, joined, are those of the whole.

        Each is the start of a control token; none where the tokenizer cannot be cut.
        """
        return self.cuts.find(text, start)

    def reference(self, text: str) -> TokenIds:
        """The right ids, encoded anew: what `encode` must give."""
        return self._reference([_clean(text)])[0]

    def distrust(self, reason: str) -> None:
        """Does without the fast encoder from now on, or, where there is none, without cutting. For good."""
        if self._fast is None:
            self.cuts = Cuts(())
            self._slow = SegmentCache(self._reference, self.cuts, 0)
        self._fast, self.reason = None, reason
        self._trusted += 1

    def _head(self, stable: Stable) -> tuple[int, TokenIds]:
        """Where the stable text is cut, and the ids up to there. Two threads may do the same work, with one result."""
        if stable.encoded is None or stable.trusted != self._trusted:
            at = self.cuts.last(stable.text)
            stable.encoded = (at, self.encode(stable.text[:at], _within(stable.parent, at)))
            stable.parent, stable.trusted = None, self._trusted
        return stable.encoded

    def _whole(self, text: str) -> TokenIds:
        fast = self._fast
        if fast is None:
            return self._slow.encode(text)
        ids: TokenIds = array("I")
        try:
            ids.frombytes(fast.encode_batch_flat([text])[0])
        except Exception:  # such as a limit of its pattern engine
            with self._lock:
                self.failures += 1
            return self._slow.encode(text)
        return ids


def _within(stable: Stable | None, end: int) -> Stable | None:
    return stable if stable is not None and len(stable.text) <= end else None


def _clean(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _prove(tokenizer: Tokenizer, reference: Encode, cache_bytes: int) -> tuple[_Fast | None, str]:
    """fastokens for this tokenizer, if it is there and equal, and what was found."""
    try:
        import fastokens
    except ImportError:
        return None, "fastokens is not installed"
    try:
        fast = fastokens.Tokenizer.from_json_str(tokenizer.to_str())
        fast.no_padding()
        fast.no_truncation()
        fast.enable_segment_cache(cache_bytes)
    except Exception as error:
        return None, f"fastokens does not read this tokenizer: {error}"

    def encode(text: str) -> TokenIds:
        ids: TokenIds = array("I")
        ids.frombytes(fast.encode_batch_flat([text])[0])
        return ids

    found = difference(tokenizer, reference, encode)
    return (fast, "equal to tokenizers in all trials") if found is None else (None, f"fastokens differs: {found}")
