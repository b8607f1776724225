"""Turns token ids into text, one by one, without broken characters.

If the tokenizer's decoder is byte-level BPE or sentencepiece with byte fallback (nearly all
models), each id stands for fixed bytes. Most ids are whole characters and are looked up; the others
go through an incremental UTF-8 decoder, which returns each character with its last byte. Any other
decoder runs through `tokenizers.DecodeStream`. A test at load, on text that is hard to cut, decides
between the two.
"""

import codecs
import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from services.families import Family
from services.tokenization.plain_tokens import PlainStretches

PROBE = "Grüße, 船は 🌊👩‍🚀 — “naïve”\n\tdef f(x):  return x ** 2  # Ω≈3½ <b>\\n</b> 0x1F\r\n"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_STEPS = frozenset(("Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"))


def tokens_within(lengths: Sequence[int], chars: int) -> int:
    """How many of a turn's tokens end within its first `chars` characters, without those that only
    hold the first bytes of a character. `lengths`: the characters of the first 0, 1, 2, …
    tokens."""
    count = bisect_right(lengths, chars) - 1
    while count and lengths[count] == lengths[count - 1]:
        count -= 1
    return count


class Detokenizer(ABC):
    """One turn's decoder."""

    __slots__ = ("stretches",)

    stretches: PlainStretches | None
    """The texts of single tokens while no bytes are pending; None if a token's text depends on its
    neighbours."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return "".join(map(self.step, ids))

    @abstractmethod
    def step(self, token: int) -> str:
        """The text that this token completes."""

    @property
    @abstractmethod
    def pending(self) -> bytes:
        """The bytes of an incomplete character."""

    @abstractmethod
    def flush(self) -> str:
        """The pending text at the end of the turn; incomplete characters become U+FFFD."""


class Vocabulary:
    """A model's tokens as text; shared by all turns."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        contents = {index: str(token.content) for index, token in added.items()}
        self._special = {contents[index]: index for index in added if added[index].special}
        """The ids of the control tokens."""
        self._special_ids = frozenset(self._special.values())
        table = _table(tokenizer, contents)
        self.texts: Sequence[str | None] | None = None
        """The text of every token that is whole characters; None: ids do not stand for fixed
        bytes."""
        self.parts: Mapping[int, bytes] = {}
        """The bytes of the other tokens."""
        if table is not None and _agrees(table, tokenizer):
            self.texts = list(map(_decoded, table))
            self.parts = {
                token: table[token] for token, text in enumerate(self.texts) if text is None
            }

    @property
    def exact(self) -> bool:
        """Whether each id stands for fixed bytes."""
        return self.texts is not None

    def bytes_of(self, token: int) -> bytes:
        """A token's bytes; empty for an id beyond the vocabulary."""
        if self.texts is None:
            return str(self.tokenizer.decode([token], skip_special_tokens=False)).encode()
        if not 0 <= token < len(self.texts):
            return b""
        text = self.texts[token]
        return self.parts[token] if text is None else text.encode()

    def is_special(self, token: int) -> bool:
        """Whether a token is a control token."""
        return token in self._special_ids

    def hidden(self, markers: Collection[str]) -> frozenset[int]:
        """The special tokens that are never shown: all but the family's markers."""
        return self._special_ids.difference(map(self._special.get, markers))


class FamilyVocabulary:
    """A model's tokens as the parsers of one family read them: without control tokens, except the
    family's markers. Shared by all turns."""

    def __init__(self, tokens: Vocabulary, family: Family) -> None:
        self.tokens = tokens
        self.family = family
        self._hidden = tokens.hidden(family.markers)
        self._stretches = PlainStretches(())
        if tokens.texts is not None:
            texts = list(tokens.texts)
            for token in self._hidden:
                texts[token] = ""
            self._stretches = PlainStretches(texts)

    def open(self) -> Detokenizer:
        """A decoder for one turn."""
        if self.tokens.texts is None:
            return _StreamDetokenizer(self.tokens.tokenizer, self._hidden)
        return _TableDetokenizer(self._stretches, self.tokens.parts)


class _TableDetokenizer(Detokenizer):
    __slots__ = ("_decoder", "_inside", "_parts", "_texts")

    def __init__(self, stretches: PlainStretches, parts: Mapping[int, bytes]) -> None:
        self.stretches = stretches
        self._texts = stretches.texts
        self._parts = parts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside = False
        """The decoder holds bytes of an incomplete character."""

    def step(self, token: int) -> str:
        try:
            text = self._texts[token]
        except IndexError:  # an id beyond the vocabulary (a padded embedding row) has no text
            return ""
        if text is None or (self._inside and text):
            text = self._decoder.decode(self._parts[token] if text is None else text.encode())
            self._inside = bool(self._decoder.getstate()[0])
        return text

    @property
    def pending(self) -> bytes:
        return self._decoder.getstate()[0] if self._inside else b""

    def flush(self) -> str:
        self._inside = False
        return self._decoder.decode(b"", True)


class _StreamDetokenizer(Detokenizer):
    """For decoders that depend on neighbours. `DecodeStream` returns None while a character is
    incomplete."""

    __slots__ = ("_hidden", "_pending", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self.stretches = None
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stream = DecodeStream(skip_special_tokens=False)
        self._pending: list[int] = []

    def step(self, token: int) -> str:
        if token in self._hidden:
            return ""
        text = self._stream.step(self._tokenizer, token)
        if text is None:
            self._pending.append(token)
            return ""
        self._pending.clear()
        return text

    @property
    def pending(self) -> bytes:
        # A byte stands for those that the library does not return.
        return b"\xef" if self._pending else b""

    def flush(self) -> str:
        if not self._pending:
            return ""
        text = str(self._tokenizer.decode(self._pending, skip_special_tokens=False))
        self._pending = []
        return text


def _table(tokenizer: Tokenizer, added: dict[int, str]) -> list[bytes] | None:
    # The decoder as in tokenizer.json. `to_str` would write the whole file: 100 ms with 150,000
    # tokens.
    steps: list[dict[str, Any]] = []
    if tokenizer.decoder is not None:
        steps = _decoder_steps(json.loads(tokenizer.decoder.__getstate__()))
    kinds = {step["type"] for step in steps}
    is_byte_level = kinds == {"ByteLevel"}
    if not is_byte_level and not (kinds and kinds <= _SENTENCEPIECE_STEPS):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        try:
            if index in added:
                table[index] = added[index].encode()
            elif is_byte_level:
                table[index] = _byte_level(token)
            else:
                table[index] = _sentencepiece(token)
        except UnicodeEncodeError:  # a token outside the byte alphabet: not byte-level after all
            return None
    return table


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _decoder_steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    steps: list[dict[str, Any]] = []
    for part in decoder["decoders"]:
        steps += _decoder_steps(part)
    return steps


def _byte_level(token: str) -> bytes:
    return token.translate(_BYTES).encode("latin-1")


def _sentencepiece(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {
        byte: chr(256 + n) for n, byte in enumerate(shifted)
    }


_BYTES = dict.fromkeys(range(256), "\uffff") | {
    ord(stand_in): byte for byte, stand_in in _byte_characters().items()
}
"""Each stand-in as the character of its byte's number; other characters of that range as U+FFFF,
which is not a byte."""


def _agrees(table: list[bytes], tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(PROBE, add_special_tokens=False).ids
    ours = b"".join(table[i] for i in ids).decode("utf-8", "replace")
    theirs = str(tokenizer.decode(ids, skip_special_tokens=False))
    # sentencepiece strips the blank that it put before the first word.
    return ours == theirs or ours.removeprefix(" ") == theirs.removeprefix(" ")
