"""Requests off the bus, decoded without decoding again what was decoded before.

An agent's request holds its whole history, its instructions and its tools: `TurnRequest` and `CountRequest` say them
one after the other, and JSON is written in one way by the frontends. So the bytes of each are compared with bytes that
were decoded already, and only the rest is decoded. Whatever is written in another way is decoded whole: the result is
always that of an ordinary decoder. What was known is the very same objects again, and the stages behind tell by that.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Text, ToolSpec, Turn
from schemas.frames import CountRequest, TurnRequest

_TURNS, _SYSTEM, _TOOLS, _BEHIND = b'"turns":[', b'],"system":[', b'],"tools":[', b'],"tool_choice":'
_LOOK = 600
"""The first turn begins so far from the start, at most: what stands before it is ids and the model's name."""
_KEY = 256
STEP = 12
STEP_BYTES = 16_384
"""So many turns, or bytes, are decoded anew before they are kept."""
BRANCHES = 8
MIN_PARTS_BYTES = 4096
"""A shorter request is decoded faster than it is taken apart."""
LISTS = 32
"""Lists of instructions, and of tools, that are kept at most."""

R = TypeVar("R", TurnRequest, CountRequest)
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode
_decode_turns = msgspec.json.Decoder(list[Turn]).decode


class RequestDecoder:
    """Decodes requests. For one thread; what was used least lately goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._known: OrderedDict[bytes, list[_Known]] = OrderedDict()
        self._turns_size = 0
        self._plain = {kind: msgspec.json.Decoder(kind) for kind in (TurnRequest, CountRequest)}
        self._systems = _Lists(msgspec.json.Decoder(list[Text]).decode, max_bytes // 4)
        self._tools = _Lists(msgspec.json.Decoder(list[ToolSpec]).decode, max_bytes // 4)
        self.fresh = 0
        """Bytes of the last request that were not known."""

    @property
    def size(self) -> int:
        """Bytes that are held, as JSON."""
        return self._turns_size + self._systems.size + self._tools.size

    def decode(self, data: bytes, kind: type[R]) -> R:
        """The request. Raises msgspec.ValidationError and msgspec.DecodeError as an ordinary decoder does."""
        self.fresh = len(data)
        start = data.find(_TURNS, 0, _LOOK) + len(_TURNS)
        if start < len(_TURNS) or not self._opens(data[:start], kind):
            return self._plain[kind].decode(data)  # type: ignore[return-value]
        key = data[start : start + _KEY]
        known = next((one for one in self._known.get(key, ()) if _goes_on(data, start, one.data)), None)
        at = start if known is None else start + len(known.data)
        try:
            parts = self._in_parts(data, start, at, kind) if len(data) - at > MIN_PARTS_BYTES else None
        except msgspec.DecodeError:
            parts = None  # not written as expected, or wrong: then the ordinary decoder says so
        if parts is None:
            self.fresh = len(data) - at + start
        request: R = parts or self._plain[kind].decode(data[:start] + data[at:])  # type: ignore[assignment]
        turns: list[Turn] = request.conversation.turns
        if known is not None:
            self._known.move_to_end(key)
            turns = known.turns + turns
            request = replace(request, conversation=replace(request.conversation, turns=turns))
        new = len(turns) - (len(known.turns) if known is not None else 0)
        if new > STEP or (new > 1 and self.fresh > STEP_BYTES):
            self._learn(data, start, key, turns, known)
        return request

    def _opens(self, head: bytes, kind: type[R]) -> bool:
        """Whether the conversation's own turns begin behind `head`."""
        try:
            opened: R = self._plain[kind].decode(head + b"]}}")  # type: ignore[assignment]
            return not opened.conversation.turns
        except msgspec.DecodeError:
            return False

    def _in_parts(self, data: bytes, start: int, at: int, kind: type[R]) -> R | None:
        """The request with its turns from `at` on, each list decoded by itself or known; None where it has none.

        That every list is whole where it is taken for whole is seen by decoding it: no JSON array begins with another.
        Raises DecodeError where it is not.
        """
        system: list[Text] = []
        tools: list[ToolSpec] = []
        fresh = more = 0
        first = data.find(_SYSTEM, at)
        if first >= 0:
            system, end, fresh = self._systems.decode(data, first + len(_SYSTEM) - 1, (_TOOLS, _BEHIND))
        else:
            first = data.find(_TOOLS, at)
            end = first + 1
        if end > 0 and data.startswith(_TOOLS, end - 1):
            tools, end, more = self._tools.decode(data, end + len(_TOOLS) - 2, (_BEHIND,))
        if not data.startswith(_BEHIND, max(end - 1, 0)):
            return None
        turns = _decode_turns(b"[" + data[at:first] + b"]")
        envelope: R = self._plain[kind].decode(data[:start] + data[end - 1 :])  # type: ignore[assignment]
        conversation = envelope.conversation
        if conversation.turns or conversation.system or conversation.tools:
            return None
        self.fresh = first - at + len(data) - end + fresh + more
        return replace(envelope, conversation=replace(conversation, turns=turns, system=system, tools=tools))

    def _learn(self, data: bytes, start: int, key: bytes, turns: Sequence[Turn], known: "_Known | None") -> None:
        """Keeps all turns but the last, which clients mark and change, if they are written as expected."""
        had, former = (known.data, len(known.turns)) if known is not None else (b"", 0)
        written = had + b"".join([_encode(turn) + b"," for turn in turns[former:-1]])
        if len(key) < _KEY or not data.startswith(written, start):
            return
        branches = self._known.setdefault(key, [])
        self._known.move_to_end(key)
        if known is not None:
            branches.remove(known)
            self._turns_size -= len(had)
        branches.insert(0, _Known(written, list(turns[:-1])))
        self._turns_size += len(written)
        if len(branches) > BRANCHES:
            self._turns_size -= len(branches.pop().data)
        while self._turns_size > self._limit // 2:
            _, oldest = self._known.popitem(last=False)
            self._turns_size -= sum(len(one.data) for one in oldest)


class _Known(Struct, frozen=True, eq=False):
    data: bytes
    """The turns as JSON, with a comma behind each."""
    turns: list[Turn]


class _Lists(Generic[T]):
    """Lists by their JSON; what was used least lately goes first."""

    def __init__(self, decode: Callable[[bytes], list[T]], max_bytes: int) -> None:
        self._decode = decode
        self._limit = max_bytes
        self._known: OrderedDict[bytes, tuple[bytes, list[T]]] = OrderedDict()
        self.size = 0

    def decode(self, data: bytes, start: int, followed_by: Sequence[bytes]) -> tuple[list[T], int, int]:
        """The list that begins at `start`, where it ends, and how many bytes were decoded for it.

        `followed_by`: what may follow, the list's own bracket included. Raises msgspec.DecodeError.
        """
        key = data[start : start + _KEY]  # of lists that begin alike the newest is kept
        former = self._known.get(key)
        if former is not None and data.startswith(former[0], start):  # no copy, nor search, of what may be 200 KB
            end = start + len(former[0])
            if data.startswith(tuple(followed_by), end - 1):
                self._known.move_to_end(key)
                return former[1], end, 0
        end = next((at for text in followed_by if (at := data.find(text, start)) >= 0), len(data)) + 1
        written = data[start:end]
        found = self._decode(written)
        if len(written) > _KEY:
            self._keep(key, written, found)
        return found, end, len(written)

    def _keep(self, key: bytes, written: bytes, found: list[T]) -> None:
        former = self._known.pop(key, None)
        self.size += len(written) - (len(former[0]) if former is not None else 0)
        self._known[key] = (written, found)
        while self.size > self._limit or len(self._known) > LISTS:
            self.size -= len(self._known.popitem(last=False)[1][0])


def _goes_on(data: bytes, start: int, known: bytes) -> bool:
    """Whether these turns stand at `start`, and another one behind them."""
    return data.startswith(known, start) and data[start + len(known) : start + len(known) + 1] == b"{"
