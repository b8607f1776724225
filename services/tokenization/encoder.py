"""Encodes rendered prompts to exactly the ids of the model's tokenizer, and no text twice.

`tokenizers` returns the right ids by definition. `fastokens` is a hundred times as fast, and used
where `equality` finds no difference for this tokenizer. Both keep the ids of segments between
control tokens."""

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Literal, TypeAlias

import fastokens
from tokenizers import Tokenizer

from services.runtime.long_work import LongWork
from services.tokenization.data_marks import DataMarks, has_surrogates, replace_surrogates
from services.tokenization.equality import difference
from services.tokenization.segments import Cuts, EncodeText, SegmentCache, TokenIds

EncoderChoice: TypeAlias = Literal["auto", "fastokens", "tokenizers"]

_UNKNOWN = "\U0010fffe"
"""A character that no vocabulary has."""
_MAX_PIECES = 65
"""Limit of pieces that are encoded where time is limited."""


class Encoder:
    """Encodes prompts. Thread-safe; both tokenizers release the interpreter's lock while they work.

    Control tokens in a text become control tokens, except those that marked data spells. No special
    tokens are added: rendered prompts have them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        fast: fastokens.Tokenizer | None = None,
        reason: str = "the tokenizer's own",
        cache_bytes: int = 64 << 20,
        marks: DataMarks | None = None,
    ) -> None:
        """`tokenizer` must neither pad nor truncate. `cache_bytes` bounds the cache of segments.
        `marks` None: data is not marked, and its control tokens are control tokens."""
        self.cuts = Cuts.of(tokenizer)
        self.marks = marks
        """The marks of data in rendered texts; None: there are none."""
        self.reason = reason
        """Why this encoder was chosen."""
        self.failures = 0
        """Texts that the fast encoder refused."""
        self._tokenizer = tokenizer
        self._fast = fast
        self._limit = threading.local()
        self._slow = SegmentCache(self._encode_new, self.cuts, cache_bytes)
        self._data_encoding = None if marks is None else DataEncoding(tokenizer, marks)
        self._data_ids: dict[str, TokenIds] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        tokenizer: Tokenizer,
        *,
        choice: EncoderChoice = "auto",
        cache_bytes: int = 64 << 20,
        marks: DataMarks | None = None,
    ) -> "Encoder":
        """The encoder of a tokenizer, by fastokens where `choice` admits it and its ids are equal.

        Raises ValueError where `choice` is fastokens and fastokens returns other ids.
        """
        fast: fastokens.Tokenizer | None = None
        reason = "the operator's choice"
        if choice != "tokenizers":
            fast, reason = _prove(tokenizer, cls(tokenizer).reference, cache_bytes)
        if choice == "fastokens" and fast is None:
            raise ValueError(f"fastokens cannot be the tokenizer: {reason}")
        return cls(tokenizer, fast=fast, reason=reason, cache_bytes=cache_bytes, marks=marks)

    @property
    def name(self) -> str:
        """The encoder in use: `fastokens` or `tokenizers`."""
        return "tokenizers" if self._fast is None else "fastokens"

    def encode(self, text: str) -> TokenIds:
        """The ids of `text`, equal to those of `reference`. Marked data is encoded as ordinary
        text, and other lone surrogates as U+FFFD."""
        return self._encode_pieces(text, self._encode_plain)

    def reference(self, text: str) -> TokenIds:
        """The right ids, without fastokens and without any cache."""
        return self._encode_pieces(text, self._exact_ids)

    def plain(self, text: str) -> str:
        """A rendered text without marks."""
        return text if self.marks is None else self.marks.plain(text)

    @contextmanager
    def limited(self, fast: int, slow: int) -> Iterator[None]:
        """A context in which this thread raises LongWork instead of encoding more characters at
        once than `fast` by fastokens, or `slow` by tokenizers."""
        self._limit.chars = fast, slow
        try:
            yield
        finally:
            self._limit.chars = None

    def find_difference(self, text: str) -> str | None:
        """Compares fastokens with `reference` on a text. On a difference, which is returned, it
        stops using fastokens. None: there is none, or fastokens is not in use."""
        if self._fast is None or self.encode(text) == self.reference(text):
            return None
        self._fast = None
        self.reason = "ids by fastokens were not the tokenizer's"
        return self.reason

    def _exact_ids(self, text: str) -> TokenIds:
        return self._exact_ids_of([text])[0]

    def _exact_ids_of(self, texts: list[str]) -> list[TokenIds]:
        # `encode` holds the interpreter's lock while it works, the batch form does not (tokenizers
        # 0.22).
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [array("I", encoding.ids) for encoding in encodings]

    def _encode_pieces(self, text: str, encode: EncodeText) -> TokenIds:
        """The ids of a text that may have marks. The control tokens that data spells are cut out
        and encoded separately, as transformers does with `sanitize_control_tokens`."""
        if self._data_encoding is not None and self._data_encoding.respelled:
            encode = partial(self._own_spellings_only, encode=encode)
        if not has_surrogates(text):
            return encode(text)
        if self.marks is None:
            return encode(replace_surrogates(text))
        pieces = self.marks.pieces(text)
        if len(pieces) > _MAX_PIECES and self._limits() is not None:
            raise LongWork
        joined: TokenIds = array("I")
        for piece in pieces:
            if piece.data:
                joined.extend(self._encode_data(piece.text))
            elif piece is pieces[0]:
                joined.extend(encode(piece.text))
            else:
                joined.extend(self._encode_mid_text(piece.text, encode, encode))
        return joined

    def _own_spellings_only(self, text: str, encode: EncodeText) -> TokenIds:
        """The ids of text in which no control token in another spelling becomes that token."""
        assert self._data_encoding is not None
        ids = encode(text)
        span = self._data_encoding.first_respelled(text, ids)
        if span is None:
            return ids
        start, end = span
        joined: TokenIds = array("I")
        if start:
            joined.extend(encode(text[:start]))
        joined.extend(self._encode_data(text[start:end]))
        if end < len(text):
            encode_rest = partial(self._own_spellings_only, encode=encode)
            joined.extend(self._encode_mid_text(text[end:], encode_rest, encode))
        return joined

    def _encode_mid_text(self, text: str, encode: EncodeText, encode_line: EncodeText) -> TokenIds:
        """The ids of text in the middle of a prompt: some tokenizers add a blank at the start of a
        text, but none after a line break."""
        line = encode_line("\n")
        ids = encode("\n" + text)
        if ids[: len(line)] != line:
            return encode(text)
        return ids[len(line) :]

    def _encode_data(self, token: str) -> TokenIds:
        """The ids of a control token's text. Where the model's vocabulary merges the text to the
        token again, it is encoded in two parts."""
        ids = self._data_ids.get(token)
        if ids is None:
            data = self._data_encoding
            assert data is not None
            ids = self._encode_mid_text(token, data.encode, self._exact_ids)
            if len(token) > 1 and not self._control_ids.isdisjoint(ids):
                ids = self._encode_data(token[:1]) + self._encode_data(token[1:])
            if token in data.marks.tokens:
                self._data_ids[token] = ids
        return ids

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        """The ids of the control tokens, without the one that stands for unknown characters."""
        if self.marks is None:
            return frozenset()
        encoded = self._exact_ids_of(sorted(self.marks.tokens))
        unknown = self._exact_ids(_UNKNOWN)
        return frozenset(ids[0] for ids in encoded if len(ids) == 1).difference(unknown)

    def _limits(self) -> tuple[int, int] | None:
        """This thread's limits of characters, by fastokens and by tokenizers; None: without."""
        limits: tuple[int, int] | None = getattr(self._limit, "chars", None)
        return limits

    def _encode_new(self, texts: list[str]) -> list[TokenIds]:
        limits = self._limits()
        if limits is not None and sum(map(len, texts)) > limits[1]:
            raise LongWork
        return self._exact_ids_of(texts)

    def _encode_plain(self, text: str) -> TokenIds:
        fast = self._fast
        if fast is None:
            return self._slow.encode(text)
        limits = self._limits()
        if limits is not None and len(text) > limits[0]:
            raise LongWork
        try:
            return _encode_fast(fast, text)
        except Exception:
            # fastokens documents no types; a known case is a limit of its pattern engine.
            with self._lock:
                self.failures += 1
            return self._slow.encode(text)


class DataEncoding:
    """The encoding of text from users, files and tools, in which no added token is recognized.

    Some tokenizers find control tokens in the normalized text (`normalized: true`), and so in other
    spellings, such as capitals. A template writes the token's own spelling; data may have any.
    """

    def __init__(self, tokenizer: Tokenizer, marks: DataMarks) -> None:
        """`marks`: the marks of that text."""
        self.marks = marks
        self._tokenizer = tokenizer
        self.respelled: dict[int, str] = {}
        """The own spelling of each control token that has others, by id."""
        if tokenizer.normalizer is not None:
            for index, token in tokenizer.get_added_tokens_decoder().items():
                if token.normalized and token.content in marks.tokens:
                    self.respelled[index] = token.content

    def encode(self, text: str) -> TokenIds:
        """The ids of a text as ordinary text: added tokens in it, special or not, are not
        recognized."""
        tokenizer = self._tokenizer
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        words = [text]
        if tokenizer.pre_tokenizer is not None:
            words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        ids: TokenIds = array("I")
        for word in words:
            ids.extend(token.id for token in tokenizer.model.tokenize(word))
        return ids

    def first_respelled(self, text: str, ids: TokenIds) -> tuple[int, int] | None:
        """The span of the first control token in another spelling; None if there is none. `ids`:
        those of the text."""
        if self.respelled.keys().isdisjoint(ids):
            return None
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            spelling = self.respelled.get(index)
            if spelling is not None and spelling != text[start:end].strip():
                return start, end
        return None


def _encode_fast(fast: fastokens.Tokenizer, text: str) -> TokenIds:
    ids: TokenIds = array("I")
    ids.frombytes(fast.encode_batch_flat([text])[0])
    return ids


def _prove(
    tokenizer: Tokenizer, reference: EncodeText, cache_bytes: int
) -> tuple[fastokens.Tokenizer | None, str]:
    """fastokens for this tokenizer, if it returns equal ids, and the reason."""
    try:
        fast = fastokens.Tokenizer.from_json_str(tokenizer.to_str())
        fast.no_padding()
        fast.no_truncation()
        fast.enable_segment_cache(cache_bytes)
    except Exception as error:  # fastokens documents no types
        return None, f"fastokens does not read this tokenizer: {error}"
    text = difference(tokenizer, reference, partial(_encode_fast, fast))
    if text is not None:
        return None, f"fastokens differs: {text}"
    return fast, "equal to tokenizers in all trials"
