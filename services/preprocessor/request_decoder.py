"""Decodes requests off the bus, without decoding again what an earlier request held.

An agent's request holds its whole history, its instructions and its tools. `TurnRequest` and `CountRequest` hold them
one after the other, and all frontends write JSON alike. So the bytes are compared with bytes that were decoded before,
and only the rest is decoded. JSON that is written differently is decoded whole: the result always equals that of an
ordinary decoder. What was known comes back as the same objects, by which the stages behind recognize it.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Generic, TypeVar

import msgspec
from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Text, ToolSpec, Turn
from schemas.frames import CountRequest, TurnRequest
from services.runtime.branch_cache import BranchCache
from services.templates.tools import SessionTools

_TURNS, _SYSTEM, _TOOLS, _BEHIND = b'"turns":[', b'],"system":[', b'],"tools":[', b'],"tool_choice":'
_LOOK = 600
"""The turns begin within so many bytes: ids and the model's name stand before them."""
_KEY = 256
STEP = 12
STEP_BYTES = 16_384
"""New turns, or bytes of them, from which on they are kept."""
MIN_PARTS_BYTES = 4096
"""A shorter request is decoded faster than it is taken apart."""
_OBJECT_FACTOR = 8
"""Decoded objects take several times the bytes of their JSON."""

R = TypeVar("R", TurnRequest, CountRequest)
L = TypeVar("L", bound=list[Any])
_encode = msgspec.json.Encoder().encode
_decode_turns = msgspec.json.Decoder(list[Turn]).decode
_decode_system = msgspec.json.Decoder(list[Text]).decode
_decode_tools = msgspec.json.Decoder(list[ToolSpec]).decode


class RequestDecoder:
    """Decodes requests, in one thread. The least recently used turns and lists are evicted first."""

    def __init__(self, max_bytes: int) -> None:
        self._known: BranchCache[_Known] = BranchCache(max_bytes // 2, lambda known: len(known.data))
        self._plain = {kind: msgspec.json.Decoder(kind) for kind in (TurnRequest, CountRequest)}
        self._systems: _Lists[list[Text]] = _Lists(_decode_system, max_bytes // 4)
        self._tools: _Lists[SessionTools] = _Lists(lambda data: SessionTools(_decode_tools(data)), max_bytes // 4)
        self.fresh = 0
        """Bytes of the last request that were not known."""
        self._turns_end = 0
        """Where the turns of the last request end that was decoded in parts."""

    @property
    def size(self) -> int:
        """Bytes that are held, roughly."""
        return self._known.size + self._systems.size + self._tools.size

    def decode(self, data: bytes, kind: type[R]) -> R:
        """The request. Raises msgspec.ValidationError and msgspec.DecodeError as an ordinary decoder does."""
        self.fresh = len(data)
        start = data.find(_TURNS, 0, _LOOK) + len(_TURNS)
        if len(data) <= MIN_PARTS_BYTES or start < len(_TURNS) or not self._opens(data[:start], kind):
            return self._plain[kind].decode(data)  # type: ignore[return-value]
        key = data[start : start + _KEY]
        known = next((one for one in self._known.get(key) if _continues(data, start, one.data)), None)
        at = start if known is None else start + len(known.data)
        try:
            parts = self._in_parts(data, start, at, kind) if len(data) - at > MIN_PARTS_BYTES else None
        except msgspec.DecodeError:
            parts = None  # written differently, or wrong: then the ordinary decoder raises
        if parts is None:
            self.fresh = len(data) - at + start
        request: R = parts or self._plain[kind].decode(data[:start] + data[at:])  # type: ignore[assignment]
        turns: list[Turn] = request.conversation.turns
        new = len(turns)
        if known is not None:
            turns = known.turns + self._recognized(turns, known)
            request = replace(request, conversation=replace(request.conversation, turns=turns))
        if parts is not None and (new > STEP or (new > 1 and self.fresh > STEP_BYTES)):
            self._keep(data, start, key, turns, known)
        elif known is not None:
            self._known.put(key, known)
        return request

    def _recognized(self, turns: list[Turn], known: "_Known") -> list[Turn]:
        """The turns behind the known ones, those that the last request had as the same objects: the stages behind keep
        whichever object they got first."""
        turns = [former if former == turn else turn for former, turn in zip_longest(known.newest, turns)][: len(turns)]
        known.newest = turns if self.fresh <= len(known.data) else []
        return turns

    def _opens(self, head: bytes, kind: type[R]) -> bool:
        """Whether the conversation's own turns begin behind `head`."""
        try:
            opened: R = self._plain[kind].decode(head + b"]}}")  # type: ignore[assignment]
            return not opened.conversation.turns
        except msgspec.DecodeError:
            return False

    def _in_parts(self, data: bytes, start: int, at: int, kind: type[R]) -> R | None:
        """The request with its turns from `at` on, each list decoded by itself or known; None where it has none.

        Decoding shows whether a list ends where it seems to: no JSON array begins with another. Raises DecodeError
        where it does not.
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
            if not more:
                tools.repeated = True
        if not data.startswith(_BEHIND, max(end - 1, 0)):
            return None
        turns = _decode_turns(b"".join((b"[", memoryview(data)[at:first], b"]")))
        envelope: R = self._plain[kind].decode(data[:start] + data[end - 1 :])  # type: ignore[assignment]
        conversation = envelope.conversation
        if conversation.turns or conversation.system or conversation.tools:
            return None
        self.fresh = first - at + len(data) - end + fresh + more
        self._turns_end = first
        return replace(envelope, conversation=replace(conversation, turns=turns, system=system, tools=tools))

    def _keep(self, data: bytes, start: int, key: bytes, turns: Sequence[Turn], known: "_Known | None") -> None:
        """Keeps all turns but the last, which clients mark and change, if its JSON is the usual one."""
        last = _encode(turns[-1])
        end = self._turns_end - len(last)
        if len(key) == _KEY and data.startswith(last, end):  # no other turn ends with the whole JSON of a turn
            self._known.put(key, _Known(data[start:end], list(turns[:-1]), list(turns[-1:])), instead_of=known)


class _Known(Struct, eq=False):
    data: bytes
    """The turns as JSON, with a comma behind each."""
    turns: list[Turn]
    newest: list[Turn]
    """The turns behind them in the last request, where they take no more bytes."""


class _Lists(Generic[L]):
    """Lists by their JSON. Of lists that begin alike the newest is kept."""

    def __init__(self, decode: Callable[[bytes], L], max_bytes: int) -> None:
        self._decode = decode
        self._known: LRUCache[bytes, tuple[bytes, L]] = LRUCache(
            max_bytes, lambda known: _OBJECT_FACTOR * len(known[0])
        )

    @property
    def size(self) -> int:
        return int(self._known.currsize)

    def decode(self, data: bytes, start: int, followed_by: tuple[bytes, ...]) -> tuple[L, int, int]:
        """The list that begins at `start`, where it ends, and how many bytes were decoded for it.

        `followed_by`: what may follow, the list's own bracket included. Raises msgspec.DecodeError.
        """
        key = data[start : start + _KEY]
        written, known = self._known.get(key, (b"", None))
        if known is not None and data.startswith(written, start):  # neither copies nor searches up to 200 KB
            end = start + len(written)
            if data.startswith(followed_by, end - 1):
                return known, end, 0
        end = next((at for text in followed_by if (at := data.find(text, start)) >= 0), len(data)) + 1
        written = data[start:end]
        decoded = self._decode(written)
        if len(written) > _KEY and _OBJECT_FACTOR * len(written) <= self._known.maxsize:
            self._known[key] = (written, decoded)
        return decoded, end, len(written)


def _continues(data: bytes, start: int, known: bytes) -> bool:
    """Whether these turns stand at `start`, with another one behind them."""
    return data.startswith(known, start) and data[start + len(known) : start + len(known) + 1] == b"{"
