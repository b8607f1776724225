"""Requests off the bus, decoded without decoding the turns that were decoded before.

An agent's request holds its whole history, and its bytes begin with those of the request before: `TurnRequest` and
`CountRequest` say the turns first, and JSON is written in one way by the frontends. So the bytes of the turns are
compared with bytes that were decoded already, and only the rest is decoded. Whatever is written in another way is
decoded whole: the result is always that of an ordinary decoder.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Turn
from schemas.frames import CountRequest, TurnRequest

_TURNS = b'"turns":['
_LOOK = 600
"""The first turn begins so far from the start, at most: what stands before it is ids and the model's name."""
_KEY = 256
STEP = 12
"""So many turns are decoded anew before they are kept."""
BRANCHES = 8

R = TypeVar("R", TurnRequest, CountRequest)
_encode = msgspec.json.Encoder().encode


class _Known(Struct, frozen=True, eq=False):
    data: bytes
    """The turns as JSON, with a comma behind each."""
    turns: list[Turn]


class RequestDecoder:
    """Decodes requests. For one thread; what was used least lately goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._known: OrderedDict[bytes, list[_Known]] = OrderedDict()
        self.size = 0
        """Bytes that are held, as JSON."""
        self._plain = {kind: msgspec.json.Decoder(kind) for kind in (TurnRequest, CountRequest)}

    def decode(self, data: bytes, kind: type[R]) -> R:
        """The request. Raises msgspec.ValidationError and msgspec.DecodeError as an ordinary decoder does."""
        start = data.find(_TURNS, 0, _LOOK) + len(_TURNS)
        if start < len(_TURNS) or not self._opens(data[:start], kind):
            return self._plain[kind].decode(data)  # type: ignore[return-value]
        key = data[start : start + _KEY]
        known = next((one for one in self._known.get(key, ()) if _goes_on(data, start, one.data)), None)
        rest = data if known is None else data[:start] + data[start + len(known.data) :]
        request: R = self._plain[kind].decode(rest)  # type: ignore[assignment]
        turns = request.conversation.turns
        if known is not None:
            self._known.move_to_end(key)
            turns = known.turns + turns
            request = replace(request, conversation=replace(request.conversation, turns=turns))
        if len(turns) - (len(known.turns) if known is not None else 0) > STEP:
            self._learn(data, start, key, turns, known)
        return request

    def _opens(self, head: bytes, kind: type[R]) -> bool:
        """Whether the conversation's own turns begin behind `head`."""
        try:
            opened: R = self._plain[kind].decode(head + b"]}}")  # type: ignore[assignment]
            return not opened.conversation.turns
        except msgspec.DecodeError:
            return False

    def _learn(self, data: bytes, start: int, key: bytes, turns: Sequence[Turn], known: _Known | None) -> None:
        """Keeps all turns but the last, which clients mark and change, if they are written as expected."""
        had, former = (known.data, len(known.turns)) if known is not None else (b"", 0)
        written = had + b"".join([_encode(turn) + b"," for turn in turns[former:-1]])
        if len(key) < _KEY or not data.startswith(written, start):
            return
        branches = self._known.setdefault(key, [])
        self._known.move_to_end(key)
        if known is not None:
            branches.remove(known)
            self.size -= len(had)
        branches.insert(0, _Known(written, list(turns[:-1])))
        self.size += len(written)
        if len(branches) > BRANCHES:
            self.size -= len(branches.pop().data)
        while self.size > self._limit:
            _, oldest = self._known.popitem(last=False)
            self.size -= sum(len(one.data) for one in oldest)


def _goes_on(data: bytes, start: int, known: bytes) -> bool:
    """Whether these turns stand at `start`, and another one behind them."""
    return data.startswith(known, start) and data[start + len(known) : start + len(known) + 1] == b"{"
