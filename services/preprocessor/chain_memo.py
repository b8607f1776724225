"""Chains of conversations that were seen before: what a request adds is hashed, not its history.

Equal turns have equal keys; `RequestDecoder` gives the very same objects again, so that comparing them takes no time.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable

from msgspec import Struct

from schemas.conversation import Call, Conversation, Media, Reasoning, Result, Text, ToolReference, Turn
from services.preprocessor.ledger_chain import Chain, chain_of, open_chain

BRANCHES = 8
"""Conversations that begin alike and are kept side by side."""
LONG_CHARS = 4096
"""Shorter instructions are hashed as fast as they are looked up."""
OPENINGS = 32
"""Instructions that are kept at most: `RequestDecoder` holds the same texts."""


class _Known(Struct, frozen=True, eq=False):
    system: list[Text]
    turns: list[Turn]
    """Up to the end of the chain's last link."""
    chain: Chain
    size: int

    def begins(self, conversation: Conversation) -> bool:
        turns, end = conversation.turns, len(self.turns)
        touches = end < len(turns) and turns[end].role == "assistant"  # it would be one turn of the model
        return not touches and turns[:end] == self.turns and self.system == conversation.system


class ChainMemo:
    """`chain_of` with a memory. Thread-safe; what was used least lately goes first."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds what is kept: the text of conversations, about."""
        self._limit = max_bytes
        self._known: OrderedDict[Hashable, list[_Known]] = OrderedDict()
        self._openings: OrderedDict[tuple[bytes, int], tuple[list[str], hashlib.blake2b]] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0
        """Bytes held, about."""

    def chain_of(self, conversation: Conversation, scope: bytes) -> Chain:
        """The chain of a conversation, as `ledger_chain.chain_of` gives it."""
        start = (scope, _opening(conversation))
        with self._lock:
            candidates = sorted(self._known.get(start, ()), key=lambda known: len(known.turns), reverse=True)
        known = next((one for one in candidates if one.begins(conversation)), None)
        chain = chain_of(conversation, scope, known.chain if known is not None else None, self._opened)
        if chain.links and (known is None or len(chain.links) > len(known.chain.links)):
            self._keep(start, conversation, chain, known)
        return chain

    def _opened(self, scope: bytes, instructions: list[str]) -> "hashlib.blake2b":
        """`open_chain`: long instructions that were hashed for another request are compared instead."""
        size = sum([len(text) for text in instructions])
        if size < LONG_CHARS:
            return open_chain(scope, instructions)
        with self._lock:
            former = self._openings.get((scope, size))
        if former is None or former[0] != instructions:
            former = (instructions, open_chain(scope, instructions))
        with self._lock:
            self._openings[scope, size] = former
            self._openings.move_to_end((scope, size))
            while len(self._openings) > OPENINGS:
                self._openings.popitem(last=False)
        return former[1].copy()

    def _keep(self, start: Hashable, conversation: Conversation, chain: Chain, former: _Known | None) -> None:
        turns = conversation.turns[: chain.links[-1].end]
        if former is None:
            fresh = _Known(
                conversation.system, turns, chain, _size(turns) + sum(len(t.text) for t in conversation.system)
            )
        else:
            turns = former.turns + turns[len(former.turns) :]
            fresh = _Known(former.system, turns, chain, former.size + _size(turns[len(former.turns) :]))
        with self._lock:
            branches = self._known.setdefault(start, [])
            self._known.move_to_end(start)
            if former in branches:
                branches.remove(former)
                self.size -= former.size
            branches.insert(0, fresh)
            self.size += fresh.size
            if len(branches) > BRANCHES:
                self.size -= branches.pop().size
            while self.size > self._limit:
                _, gone = self._known.popitem(last=False)
                self.size -= sum(one.size for one in gone)


def _opening(conversation: Conversation) -> Hashable:
    """What conversations that go on from each other have in common, told quickly."""
    turns = conversation.turns
    first = turns[0].parts[0] if turns and turns[0].parts else None
    text = first.text if isinstance(first, Text) else ""
    return conversation.client.session, len(conversation.system), len(text), text[:400]


def _size(turns: Iterable[Turn]) -> int:
    return sum(300 + sum(_part_size(part) for part in turn.parts) for turn in turns)


def _part_size(part: Text | Media | Reasoning | Call | Result | ToolReference) -> int:
    if isinstance(part, Result):
        return 200 + sum(_part_size(inner) for inner in part.parts)
    if isinstance(part, Text):
        return 100 + len(part.text)
    if isinstance(part, Call):
        return 300 + len(part.arguments)
    if isinstance(part, Reasoning):
        return 200 + len(part.text or "") + len(part.seal or "")
    return 300
