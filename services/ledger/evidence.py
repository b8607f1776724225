"""Distinguishes turns with the same visible history by what their clients received.

A client sends back the ids of a turn's calls and items and the seals of its reasoning, which no other turn has, and the
text of its reasoning. An entry has digests of all of them.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from schemas.conversation import Call, Message, Reasoning
from schemas.ledger import LedgerEntry
from services.ledger.keys import squeeze

if TYPE_CHECKING:  # the parser, which renders nothing, imports this module without Jinja: 30 ms and 4 MB
    from services.templates.messages import Unseal

_MARK_BYTES = 8
_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_CALL_ID_LENGTH: Final = 24
_CALL_ID = re.compile(f"toolu[{_ALPHABET}]{{{_CALL_ID_LENGTH}}}")
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})\d{3,}")
_SEPARATORS = re.compile(r"[^A-Za-z0-9]")


class Evidence(Struct, frozen=True):
    """Digests of what a client sent back of one turn."""

    ids: frozenset[bytes]
    """Marks of the ids that this server made."""
    seals: dict[bytes, str]
    """Blobs of sealed reasoning by their marks; possibly foreign."""
    thoughts: list[bytes]
    """Digests of the reasoning text: all of it, then each block."""

    def marks(self, entry: LedgerEntry | None, unseal: "Unseal | None") -> set[bytes]:
        """The marks that the turn's entry must have: those of ids, and those of seals that the entry has or that this
        server made for another turn."""
        entry_marks = () if entry is None else entry.marks
        ours = (
            mark for mark, blob in self.seals.items() if mark in entry_marks or (unseal and unseal(blob) is not None)
        )
        return {*self.ids, *ours}

    def fits_reasoning(self, entry: LedgerEntry) -> bool:
        """Whether the client sent the entry's reasoning: all of it, however joined, or some of its blocks."""
        return self.thoughts[:1] == entry.thoughts[:1] or set(self.thoughts[1:]) <= set(entry.thoughts)

    def verdict(self, entry: LedgerEntry, unseal: "Unseal | None") -> bool | None:
        """Whether the client sent back this entry's turn; None where it may have. Equal reasoning proves nothing: other
        turns may have it, too."""
        if marks := self.marks(entry, unseal):
            return marks <= set(entry.marks)
        return False if self.thoughts and not self.fits_reasoning(entry) else None


def call_id(turn: str, block: int) -> str:
    """An id such as `toolu_…` for the call in a block of a turn: 140 bits, the same in every shard.

    Prefix and length are Anthropic's; clients of the other APIs do not look at them. The model's own ids are not sent:
    some models repeat them.
    """
    number = int.from_bytes(hashlib.blake2b(f"{turn}/{block}".encode(), digest_size=24).digest())
    characters = []
    for _ in range(_CALL_ID_LENGTH):
        number, index = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[index])
    return "toolu_" + "".join(characters)


def turn_marks(turn: str, call_ids: Iterable[str], seals: Iterable[str]) -> list[bytes]:
    """The marks of a turn: digests of its own id, from which the ids of Responses items are made, its calls and
    seals."""
    calls = [_mark("call", _SEPARATORS.sub("", call)) for call in call_ids]
    return [_mark("turn", turn), *calls, *(_mark("seal", seal) for seal in seals)]


def reasoning_digests(thoughts: Sequence[str]) -> list[bytes]:
    """Digests of all reasoning, then of each block; empty where there is none. White space does not count."""
    bare = [text for text in map(squeeze, thoughts) if text]
    return [_mark("thought", text) for text in ("".join(bare), *bare)] if bare else []


def evidence_of(messages: Iterable[Message]) -> Evidence:
    """The evidence in one turn of the model, as a client sent it back."""
    ids: set[bytes] = set()
    seals: dict[bytes, str] = {}
    thoughts: list[str] = []
    for message in messages:
        items = [*message.ids]
        for part in message.parts:
            if isinstance(part, Call):
                # OpenClaw removes the underscore, or puts the id into a longer one.
                if (own := _CALL_ID.search(_SEPARATORS.sub("", part.call_id))) is not None:
                    ids.add(_mark("call", own[0]))
                items.append(part.item_id or "")
            elif isinstance(part, Reasoning):
                thoughts.append(part.text or "")
                items.append(part.id or "")
                if part.seal:
                    seals[_mark("seal", part.seal)] = part.seal
        ids.update(_mark("turn", found[1]) for item in items if (found := _ITEM_ID.fullmatch(item)))
    return Evidence(frozenset(ids), seals, reasoning_digests(thoughts))


def _mark(kind: str, text: str) -> bytes:
    data = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=_MARK_BYTES).digest()
