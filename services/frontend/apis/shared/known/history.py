"""Caches the beginnings of sessions: of a request that goes on from an earlier one, only the new messages are read.

An agent sends its whole history with every request. What a JSON decoder has read up to some byte depends on nothing
behind that byte: where a body begins with the same bytes as an earlier one, up to a message in the middle of its list,
the messages before are the earlier one's. The rest is decoded with one made-up message in their place, which comes back
in front of the others where the list is the body's own.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import msgspec
from msgspec import Raw, Struct
from xxhash import xxh3_64_hexdigest

from schemas.conversation import Media, Turn
from schemas.errors import TurnwireError
from services.frontend.turns.known_turns import KnownTurns, SessionTurns
from services.frontend.turns.media.parts import media_in
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
_CALLER = ("authorization", "x-api-key")

_encode = msgspec.json.Encoder().encode
_decode_messages = msgspec.json.Decoder(list[Raw]).decode


class History(Protocol):
    """A reader of messages, as each API has one."""

    turns: list[Turn]

    @property
    def bound(self) -> bool:
        """What was read depends on more than the messages."""
        ...

    def read(self, messages: list[Any], first: int = 0) -> None:
        """Reads messages, of which the first has the number `first` in the request."""
        ...

    def fork(self) -> Self:
        """A reader that has read the same, and goes on by itself."""
        ...


H = TypeVar("H", bound=History)
T = TypeVar("T")


class Beginning(Struct, Generic[H], frozen=True, eq=False):
    """The beginning of a body, and what was read of it."""

    data: bytes
    """Up to a message in the middle of the list."""
    start: int
    """Where the first message begins."""
    messages: int
    items: list[Any]
    """The messages themselves, where they are kept."""
    history: H
    known: KnownTurns


class KnownHistory(Generic[H]):
    """Beginnings of bodies by their bytes and caller. Thread-safe; the least recently used go first."""

    def __init__(
        self,
        is_plain: Callable[[Any], bool],
        *,
        opens: Callable[[Any], bool] = lambda message: message.role == "assistant",
        member: str = "messages",
        copy: Callable[[Any], Any] | None = None,
        max_bytes: int = KNOWN_BYTES,
    ) -> None:
        """`is_plain`: whether a message means the same in every request that begins with it. `opens`: whether a
        beginning may end before it. `member`: the list's name in a body. `copy`: of a message, where they are kept.
        `max_bytes` 0: keeps nothing."""
        self._known: BranchCache[Beginning[H]] = BranchCache(max_bytes, lambda one: _FACTOR * len(one.data))
        self._largest = max_bytes // _FACTOR // 4
        self._is_plain = is_plain
        self._opens = opens
        self._member = member
        self._copy = copy
        self._decode_list = msgspec.json.Decoder(msgspec.defstruct("_List", [(member, Raw)])).decode

    @property
    def size(self) -> int:
        """Bytes that are held, roughly."""
        return self._known.size

    def decode(
        self, body: bytes, caller: Hashable, decode: Callable[[bytes], T], messages_of: Callable[[T], Any]
    ) -> tuple[T, Beginning[H] | None]:
        """The decoded body; without its first messages where it has a known beginning. Raises as `decode`.

        `messages_of` returns the list of a decoded body.
        """
        begun = self._find(body, caller) if self._largest else None
        if begun is not None:
            decoded = self._decode_rest(body, begun, decode, messages_of)
            if decoded is not None:
                return decoded, begun
        return decode(body), None

    def _decode_rest(
        self, body: bytes, begun: Beginning[H], decode: Callable[[bytes], T], messages_of: Callable[[T], Any]
    ) -> T | None:
        """The body decoded with a made-up message in place of the known ones, and without it. None where the list that
        begins with it is not the body's own, and for an error: that of the whole body names its place."""
        rest = body[len(begun.data) :]
        mark = xxh3_64_hexdigest(rest)
        item = b'{"role":"user","content":"%b"}' % mark.encode()
        try:
            decoded = decode(b"%b%b,%b" % (body[: begun.start], item, rest))
        except (TurnwireError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        messages = messages_of(decoded)
        first = messages[0] if isinstance(messages, list) and messages else None
        if first is None or (bytes(first) != item if isinstance(first, Raw) else first.content != mark):
            return None
        del messages[0]
        return decoded

    def read(
        self, body: bytes, caller: Hashable, history: H, messages: list[Any], begun: Beginning[H] | None
    ) -> KnownTurns | None:
        """Lets `history`, which goes on from that of `begun`, read the messages of a decoded body. Keeps the beginning
        where it has grown, and returns what is known of its turns. Raises as `history.read`."""
        first = 0 if begun is None else begun.messages
        if len(messages) >= STEP + BACK and len(body) <= self._largest:
            count = self._cut(messages)
            place = self._place(body, count, begun) if count else None
            if place is not None:
                history.read(messages[:count], first)
                start, end = place
                grown = _known_turns(history.turns, None if begun is None else begun.known)
                if grown is not None and not history.bound:
                    items = [] if begun is None else begun.items
                    if self._copy is not None:
                        items = items + list(map(self._copy, messages[:count]))
                    kept = Beginning(body[:end], start, first + count, items, history.fork(), grown)
                    self._known.put(_key(body, end.bit_length() - 1, caller), kept, instead_of=begun)
                    begun = kept
                first, messages = first + count, messages[count:]
        history.read(messages, first)
        return None if begun is None else begun.known

    def _cut(self, messages: Sequence[Any]) -> int:
        """How many messages to keep."""
        count = next((at for at in range(len(messages) - BACK, 0, -1) if self._opens(messages[at])), 0)
        return count if all(map(self._is_plain, messages[:count])) else 0

    def _place(self, body: bytes, count: int, begun: Beginning[H] | None) -> tuple[int, int] | None:
        """Where the first message begins in a body, and that with the number `count` behind those of `begun`."""
        known = 0 if begun is None else len(begun.data)
        rest = body if begun is None else b'{"%b":[%b' % (self._member.encode(), body[known:])
        try:
            json = bytes(getattr(self._decode_list(rest), self._member))
            messages = _decode_messages(json)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if begun is not None:
            start = begun.start
        elif (place := _only_place(body, json)) is not None:
            start = place + 1
        else:
            return None
        end = max(start, known)
        for message in messages[:count]:
            end = _next_value(body, message, end) + memoryview(message).nbytes
        return start, _next_value(body, messages[count], end)

    def _find(self, body: bytes, caller: Hashable) -> Beginning[H] | None:
        for power in range(len(body).bit_length() - 1, _MIN_KEY - 1, -1):
            key = _key(body, power, caller)
            found = next((one for one in self._known.get(key) if body.startswith(one.data)), None)
            if found is not None:
                self._known.put(key, found)
                return found
        return None


def _only_place(body: bytes, part: bytes) -> int | None:
    """Where a part of a body stands; None where it stands in several places. Searches for its beginning: a search for
    all of a long part first examines the part."""
    places = []
    place = body.find(part[:_KEY_BYTES])
    while place >= 0:
        if body.startswith(part, place):
            places.append(place)
        place = body.find(part[:_KEY_BYTES], place + 1)
    return places[0] if len(places) == 1 else None


def _next_value(body: bytes, value: Raw, at: int) -> int:
    """Where the next value of a list begins: only white space and a comma, which begin no value, are before it."""
    return body.index(bytes(memoryview(value)[:1]), at)


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


def caller_of(headers: Mapping[str, str]) -> Hashable:
    """What a request's sender identifies itself with."""
    return tuple(map(headers.get, _CALLER))


def session_turns(turns: list[Turn], known: KnownTurns | None) -> list[Turn]:
    """The turns of a request, with what is known of their beginning."""
    if known is None or turns[: len(known.turns)] != known.turns:
        return turns
    return SessionTurns(turns, known)


def _key(data: bytes, power: int, caller: Hashable) -> Hashable:
    """A beginning of a length between two powers of 2 is known by what stands before the smaller one: sessions that
    begin alike differ there."""
    end = 1 << power
    return power, data[end - _KEY_BYTES : end], caller
