"""A cache of the beginnings of sessions: of a request that goes on from an earlier one, only the new messages are read.

An agent sends its whole history with every request. What a JSON decoder has read up to some byte depends on nothing
behind that byte: where a body begins with the same bytes as an earlier one, up to a message in the middle of its list,
the messages before are the earlier one's. The rest is decoded with one made-up message in their place, which comes back
in front of the others where the list is the body's own.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec
from msgspec import Raw, Struct
from xxhash import xxh3_64_hexdigest

from schemas.conversation import Media, Turn
from schemas.errors import TurnwireError
from services.frontend.apis.common.session_turns import KnownTurns, SessionTurns
from services.frontend.media.parts import media_in
from services.runtime.branch_cache import BranchCache

KNOWN_BYTES: Final = 64 * 1024 * 1024
STEP: Final = 12
"""New messages from which on they are kept."""
BACK: Final = 5
"""The last messages are not kept: clients mark and change them."""
_FACTOR = 4
"""A beginning is held as the client's JSON, as objects and as this server's JSON."""
_KEY_BYTES = 256
_MIN_KEY = 9
_LIST = re.compile(rb'"messages"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*')
_COMMA = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_CALLER = ("authorization", "x-api-key")

_encode = msgspec.json.Encoder().encode


class History(Protocol):
    """A reader of messages, as each API has one."""

    turns: list[Turn]

    def read(self, messages: list[Any], first: int = 0) -> None:
        """Reads messages, of which the first has the number `first` in the request."""
        ...

    def fork(self) -> Self:
        """A reader that has read the same, and goes on by itself."""
        ...


class Body(Protocol):
    """A decoded body."""

    messages: list[Any]


B = TypeVar("B", bound=Body)
H = TypeVar("H", bound=History)
T = TypeVar("T")


class Beginning(Struct, Generic[H], frozen=True, eq=False):
    """The beginning of a body, and what was read of it."""

    data: bytes
    """Up to a message in the middle of the list."""
    start: int
    """Where the first message begins."""
    messages: int
    history: H
    known: KnownTurns


class _Messages(Struct):
    messages: list[Raw]


_messages = msgspec.json.Decoder(_Messages).decode


class KnownHistory(Generic[H]):
    """Beginnings of bodies by their bytes and caller. Thread-safe; the least recently used go first."""

    def __init__(self, is_plain: Callable[[Any], bool], max_bytes: int = KNOWN_BYTES) -> None:
        """`is_plain`: whether a message means the same in every request that begins with it."""
        self._known: BranchCache[Beginning[H]] = BranchCache(max_bytes, lambda one: _FACTOR * len(one.data))
        self._largest = max_bytes // _FACTOR // 4
        self._is_plain = is_plain

    @property
    def size(self) -> int:
        """Bytes that are held, roughly."""
        return self._known.size

    def decode(
        self, body: bytes, headers: Mapping[str, str], decode: Callable[[bytes], tuple[B, T]]
    ) -> tuple[B, T, Beginning[H] | None]:
        """The decoded body and its tools; without its first messages where it has a known beginning. Raises as
        `decode`."""
        begun = self._find(body, headers)
        if begun is None:
            return *decode(body), None
        rest = body[len(begun.data) :]
        mark = xxh3_64_hexdigest(rest)
        try:
            decoded, tools = decode(b'%b{"role":"user","content":"%b"},%b' % (body[: begun.start], mark.encode(), rest))
            if decoded.messages and decoded.messages[0].content == mark:
                del decoded.messages[0]
                return decoded, tools, begun
        except (TurnwireError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # the error of the whole body names its place
        return *decode(body), None

    def read(
        self, body: bytes, headers: Mapping[str, str], history: H, messages: list[Any], begun: Beginning[H] | None
    ) -> list[Turn]:
        """The turns of a decoded body, whose messages `history` then has read: it goes on from that of `begun`. Keeps
        the beginning where it has grown. Raises as `history.read`."""
        first = 0 if begun is None else begun.messages
        if len(messages) >= STEP + BACK and len(body) <= self._largest:
            count = self._cut(messages)
            place = self._place(body, count, messages, begun) if count else None
            if place is not None:
                history.read(messages[:count], first)
                first, messages, (start, end) = first + count, messages[count:], place
                grown = _known_turns(history.turns, None if begun is None else begun.known)
                if grown is not None:
                    kept = Beginning(body[:end], start, first, history.fork(), grown)
                    self._known.put(_key(body, end.bit_length() - 1, headers), kept, instead_of=begun)
                    begun = kept
        history.read(messages, first)
        turns, known = history.turns, None if begun is None else begun.known
        if known is None or turns[: len(known.turns)] != known.turns:
            return turns
        return SessionTurns(turns, known)

    def _cut(self, messages: Sequence[Any]) -> int:
        """How many messages to keep."""
        count = next((at for at in range(len(messages) - BACK, 0, -1) if messages[at].role == "assistant"), 0)
        return count if all(map(self._is_plain, messages[:count])) else 0

    def _place(
        self, body: bytes, count: int, decoded: Sequence[Any], begun: Beginning[H] | None
    ) -> tuple[int, int] | None:
        """Where the list begins in a body, and its message with the number `count`, of those that were decoded."""
        start = self._start(body) if begun is None else begun.start
        end = start if begun is None else len(begun.data)
        messages = self._raw(b'{"messages":[' + body[end:])
        if not start or len(messages) != len(decoded):
            return None
        for message in messages[:count]:
            end += len(bytes(message))
            comma = _COMMA.match(body, end)
            if comma is None or not body.endswith(bytes(message), start, end):
                return None
            end = comma.end()
        return start, end

    def _start(self, body: bytes) -> int:
        """Where the first message begins; 0 where that is not clear."""
        found = _LIST.search(body)
        if found is None:
            return 0
        mark = b'"%b"' % xxh3_64_hexdigest(body).encode()
        messages = self._raw(b"%b%b,%b" % (body[: found.end()], mark, body[found.end() :]))
        return found.end() if messages and bytes(messages[0]) == mark else 0

    def _raw(self, body: bytes) -> list[Raw]:
        try:
            return _messages(body).messages
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return []

    def _find(self, body: bytes, headers: Mapping[str, str]) -> Beginning[H] | None:
        for power in range(len(body).bit_length() - 1, _MIN_KEY - 1, -1):
            key = _key(body, power, headers)
            found = next((one for one in self._known.get(key) if body.startswith(one.data)), None)
            if found is not None:
                self._known.put(key, found)
                return found
        return None


def _known_turns(turns: list[Turn], former: KnownTurns | None) -> KnownTurns | None:
    """None for turns with documents that are still to be read."""
    if former is not None and turns[: len(former.turns)] != former.turns:
        former = None
    new = turns if former is None else turns[len(former.turns) :]
    media = media_in(new)
    if not new or any(type(one) is not Media for one in media):
        return None
    json = b",".join(map(_encode, new))
    if former is None:
        return KnownTurns(list(turns), json, media)
    return KnownTurns(former.turns + new, b"%b,%b" % (former.json, json), former.media + media)


def _key(data: bytes, power: int, headers: Mapping[str, str]) -> Hashable:
    """A beginning of a length between two powers of 2 is known by what stands before the smaller one: sessions that
    begin alike differ there."""
    end = 1 << power
    return power, data[end - _KEY_BYTES : end], *map(headers.get, _CALLER)
