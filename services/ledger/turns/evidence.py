"""Distinguishes turns with the same visible history by what their clients received.

A client sends back the ids of a turn's calls and items and the seals of its reasoning, which no
other turn has, and the text of its reasoning. An entry has digests of all of them.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from msgspec import Struct

from schemas.conversation import Call, Message, Reasoning, Unseal
from schemas.ledger import LedgerEntry
from services.ledger.turns.keys import squeeze

_DIGEST_BYTES = 8
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_NUMBER_LENGTH: Final = 10
_TAG_LENGTH: Final = 14
_TAGS: Final = len(_ALPHABET) ** _TAG_LENGTH
_FIRST_NUMBERS: Final = len(_ALPHABET) ** _NUMBER_LENGTH - (1 << 32)
"""Numbers from which a turn's calls may count without an overflow."""
_CALL_ID = re.compile(f"toolu_?([{_ALPHABET}]{{{_NUMBER_LENGTH}}})([{_ALPHABET}]{{{_TAG_LENGTH}}})")
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})\d{3,}")
_SEPARATORS = re.compile(r"[^A-Za-z0-9]")


class Proof(Enum):
    """The result of comparing a client's turn with an entry."""

    SAME = "the client sent back the entry's turn"
    OTHER = "the client sent back another turn"
    NONE = "it may be the entry's turn"


class Evidence(Struct, frozen=True):
    """Digests of what a client sent back of one turn."""

    ids: frozenset[bytes]
    """Digests of the ids that this server made."""
    seals: dict[bytes, str]
    """Blobs of sealed reasoning by their digests; possibly foreign."""
    reasoning_digests: list[bytes]
    """Digests of the reasoning text: all of it, then each block."""

    def required_digests(self, entry: Sequence[bytes], unseal: Unseal) -> set[bytes]:
        """The digests that the turn's entry must have: those of ids, and those of seals that an
        entry has (`entry`: its `id_digests`) or that this server made for another turn."""
        digests = set(self.ids)
        for digest, seal in self.seals.items():
            if digest in entry or unseal(seal) is not None:
                digests.add(digest)
        return digests

    def fits_reasoning(self, entry: LedgerEntry) -> bool:
        """Whether the client sent the entry's reasoning: all of it, however joined, or some of its
        blocks."""
        if self.reasoning_digests[:1] == entry.reasoning_digests[:1]:
            return True
        blocks = self.reasoning_digests[1:]
        return set(blocks) <= set(entry.reasoning_digests)

    def proof(self, entry: LedgerEntry, unseal: Unseal) -> Proof:
        """What the evidence shows of an entry. Equal reasoning proves nothing: other turns may have
        it, too."""
        digests = self.required_digests(entry.id_digests, unseal)
        if digests:
            return Proof.SAME if digests <= set(entry.id_digests) else Proof.OTHER
        if self.reasoning_digests and not self.fits_reasoning(entry):
            return Proof.OTHER
        return Proof.NONE


def call_id(turn: str, block: int) -> str:
    """An id such as `toolu_…` for the call in a block of a turn: 140 bits, the same in every shard.

    Prefix and length are Anthropic's; clients of the other APIs do not look at them. The model's
    own ids are not sent: some models repeat them. The calls of a turn are numbered from a random
    number on, and the turn's tag is in the id of each: ids alone show which calls are of one turn,
    and their order (`call_order`).
    """
    first, tag = divmod(_turn_number(turn), _TAGS)
    number = first % _FIRST_NUMBERS + block
    return f"toolu_{_digits(number, _NUMBER_LENGTH)}{_digits(tag, _TAG_LENGTH)}"


def call_order(call_id: str) -> tuple[str, str]:
    """The tag of the turn with this call, and a text by which the calls of a turn are sorted. Both
    are empty for an id that this server did not make."""
    match = _find_call_id(call_id)
    if match is None:
        return "", ""
    lowest_digit_first, tag = match.groups()
    return tag, lowest_digit_first[::-1]


def item_tags(ids: Iterable[str]) -> set[str]:
    """The tags of the turns from which Responses items with these ids are."""
    return {_digits(_turn_number(turn), _TAG_LENGTH) for turn in _turns_of(ids)}


def id_digests(turn: str, call_ids: Iterable[str], seals: Iterable[str]) -> list[bytes]:
    """Digests of what only a turn's client received: the turn's own id, from which the ids of
    Responses items are made, its calls and seals, in this order."""
    digests = [_digest("turn", turn)]
    digests += [_digest("call", _SEPARATORS.sub("", call_id)) for call_id in call_ids]
    digests += [_digest("seal", seal) for seal in seals]
    return digests


def call_digest(call_id: str) -> bytes:
    """The digest of a call's id as its client sent it back; empty for an id that this server did
    not make."""
    match = _find_call_id(call_id)
    return _digest("call", f"toolu{match[1]}{match[2]}") if match is not None else b""


def reasoning_digests(thoughts: Sequence[str]) -> list[bytes]:
    """Digests of all reasoning, then of each block; empty where there is none. White space does not
    count."""
    bare = [text for text in map(squeeze, thoughts) if text]
    if not bare:
        return []
    return [_digest("thought", text) for text in ("".join(bare), *bare)]


def evidence_of(messages: Iterable[Message]) -> Evidence:
    """The evidence in one turn of the model, as a client sent it back."""
    ids: set[bytes] = set()
    items: list[str] = []
    seals: dict[bytes, str] = {}
    thoughts: list[str] = []
    for message in messages:
        items += message.ids
        for part in message.parts:
            if isinstance(part, Call):
                items.append(part.item_id or "")
                digest = call_digest(part.call_id)
                if digest:
                    ids.add(digest)
            elif isinstance(part, Reasoning):
                items.append(part.id or "")
                thoughts.append(part.text or "")
                if part.seal:
                    seals[_digest("seal", part.seal)] = part.seal
    ids.update(_digest("turn", turn) for turn in _turns_of(items))
    return Evidence(frozenset(ids), seals, reasoning_digests(thoughts))


def _find_call_id(text: str) -> "re.Match[str] | None":
    """Finds an id that this server made. OpenClaw removes the underscore, or puts the id into a
    longer one."""
    return _CALL_ID.search(text) or _CALL_ID.search(_SEPARATORS.sub("", text))


def _turns_of(item_ids: Iterable[str]) -> list[str]:
    matches = (_ITEM_ID.fullmatch(id) for id in item_ids)
    return [match[1] for match in matches if match is not None]


def _turn_number(turn: str) -> int:
    return int.from_bytes(hashlib.blake2b(turn.encode(), digest_size=24).digest())


def _digits(number: int, count: int) -> str:
    """The last digits of a number, the lowest first: some clients only keep the first characters of
    an id."""
    digits = []
    for _ in range(count):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def _digest(kind: str, text: str) -> bytes:
    data = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
