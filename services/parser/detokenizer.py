"""Token ids to text, one step at a time, never a broken character.

Where the tokenizer's decoder is byte-level BPE or sentencepiece with byte fallback (nearly all models), each id stands
for a fixed run of bytes: a table of them and an incremental UTF-8 decoder give each character with its last byte, in
0.3 µs a token. Any other decoder is asked through `tokenizers.DecodeStream`. Which of the two is right for a tokenizer
is tried at load on text that is hard to cut.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

PROBE = "Grüße, 船は 🌊👩‍🚀 — “naïve”\n\tdef f(x):  return x ** 2  # Ω≈3½ <b>\\n</b> 0x1F\r\n"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """One turn's decoder."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        ...

    def flush(self) -> str:
        """What was held back, when no more tokens come: broken bytes become U+FFFD."""
        ...


class Vocabulary:
    """A model's tokens as text; shared by all turns, read-only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spec = json.loads(tokenizer.to_str())
        self._special: dict[int, str] = {
            int(token["id"]): str(token["content"]) for token in spec["added_tokens"] if token["special"]
        }
        table = _table(tokenizer, spec)
        self._table = table if table is not None and _agrees(table, tokenizer) else None

    @property
    def exact(self) -> bool:
        """Whether ids map to bytes one by one."""
        return self._table is not None

    def hidden(self, markers: Collection[str]) -> frozenset[int]:
        """Special tokens that are never shown: all but those which the family's grammar is written in."""
        return frozenset(token for token, text in self._special.items() if text not in markers)

    def open(self, hidden: frozenset[int]) -> Detokenizer:
        """A decoder for one turn that leaves out the `hidden` tokens."""
        if self._table is None:
            return _StreamDetokenizer(self._tokenizer, hidden)
        return _TableDetokenizer(self._table, hidden)


class _TableDetokenizer:
    __slots__ = ("_decode", "_decoder", "_hidden", "_table")

    def __init__(self, table: list[bytes], hidden: frozenset[int]) -> None:
        self._table = table
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decode = self._decoder.decode

    def feed(self, ids: Sequence[int]) -> str:
        table, hidden, size = self._table, self._hidden, len(self._table)
        # An id beyond the vocabulary (a padded embedding row) has no text.
        return self._decode(b"".join([table[i] for i in ids if i not in hidden and i < size]))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class _StreamDetokenizer:
    """For decoders that look at neighbours. `DecodeStream` gives nothing while a character is incomplete."""

    __slots__ = ("_hidden", "_pending", "_stream", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stream = DecodeStream(skip_special_tokens=False)
        self._pending: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        out = []
        for token in ids:
            if token in self._hidden:
                continue
            text = self._stream.step(self._tokenizer, token)
            if text is None:
                self._pending.append(token)
            else:
                self._pending.clear()
                out.append(text)
        return "".join(out)

    def flush(self) -> str:
        pending, self._pending = self._pending, []
        return str(self._tokenizer.decode(pending, skip_special_tokens=False)) if pending else ""


def _table(tokenizer: Tokenizer, spec: dict[str, Any]) -> list[bytes] | None:
    steps = _decoder_steps(spec.get("decoder"))
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        convert: Callable[[str], bytes] = _byte_level
    elif kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        convert = _sentencepiece
    else:
        return None
    added = {int(token["id"]): str(token["content"]) for token in spec["added_tokens"]}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        try:
            table[index] = added[index].encode() if index in added else convert(token)
        except KeyError:  # a token outside the byte alphabet: not byte-level after all
            return None
    return table


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _decoder_steps(part)]
    return [decoder]


def _byte_level(token: str) -> bytes:
    return bytes(_BYTE_OF[character] for character in token)


def _sentencepiece(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode()


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(shifted)}


_BYTE_OF = {character: byte for byte, character in _byte_characters().items()}


def _agrees(table: list[bytes], tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(PROBE, add_special_tokens=False).ids
    ours = b"".join(table[i] for i in ids).decode("utf-8", "replace")
    theirs = str(tokenizer.decode(ids, skip_special_tokens=False))
    # sentencepiece strips the blank that it put before the first word; in mid-prompt there is none to strip.
    return ours == theirs or ours.removeprefix(" ") == theirs.removeprefix(" ")
