"""What was made of a part of a request body, found again by that part's bytes. Memory of a dialect, nothing else.

An agent sends the same tools with every request of every session. To find 20 of them again is to compare 62 KB of JSON;
to decode them, make their specs, look how deep they are and say them on the bus again costs 190 us. What is found are
the very same objects, and open turns share them. (Texts are not worth it: to skip one costs as much as to decode it.)
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

KNOWN_BYTES = 4 * 1024 * 1024
"""What all parts of one kind may have together, as JSON: the tools of some 60 agents."""
MIN_BYTES = 256
"""A smaller part is read as soon."""
_EDGE = 64
_BRANCHES = 4
"""Parts of one length that begin and end alike, of which so many are kept."""

T = TypeVar("T")
B = TypeVar("B")


class KnownParts(Generic[T]):
    """Parts of one kind. Thread-safe; what was used least lately goes first. What is kept must not be changed."""

    def __init__(self, max_bytes: int = KNOWN_BYTES) -> None:
        self._limit = max_bytes
        self._known: OrderedDict[tuple[int, bytes, bytes], list[tuple[bytes, T]]] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0
        """Bytes that are held, as JSON."""

    def get(self, data: bytes, make: Callable[[bytes], T]) -> T:
        """What `make` once made of these bytes. Raises as `make`, and then nothing is kept."""
        if not MIN_BYTES <= len(data) <= self._limit // 4:
            return make(data)
        key = (len(data), data[:_EDGE], data[-_EDGE:])  # to hash all of it takes four times as long as to compare it
        with self._lock:
            for known, made in self._known.get(key, ()):
                if known == data:
                    self._known.move_to_end(key)
                    return made
        made = make(data)
        with self._lock:
            self._keep(key, data, made)
        return made

    def _keep(self, key: tuple[int, bytes, bytes], data: bytes, made: T) -> None:
        branches = self._known.setdefault(key, [])
        self._known.move_to_end(key)
        branches.insert(0, (data, made))
        self.size += len(data)
        if len(branches) > _BRANCHES:
            self.size -= len(branches.pop()[0])
        while self.size > self._limit:
            _, oldest = self._known.popitem(last=False)
            self.size -= sum(len(known) for known, _ in oldest)


class Spelled(list[T]):
    """A list that knows its own JSON, so that it need not be encoded again. Not empty, and not to be changed."""

    __slots__ = ("json",)

    def __init__(self, items: Iterable[T], json: bytes | None = None) -> None:
        """`json`: what msgspec makes of the items, where it is known."""
        super().__init__(items)
        self.json = msgspec.json.encode(self) if json is None else json


class UnreadBody(Generic[B]):
    """Reads bodies of a type with some of their members left as JSON. Has no state."""

    def __init__(self, body: type[B], **unread: tuple[Any, Any]) -> None:
        """`unread`: types and defaults of those members; each takes whatever `body` takes there."""
        fields = [(name, kind, default) for name, (kind, default) in unread.items()]
        self._plain = msgspec.json.Decoder(body)
        shape: Any = msgspec.defstruct(body.__name__, fields, bases=(body,), kw_only=True)
        self._unread = msgspec.json.Decoder(shape)

    def read(self, data: bytes, take: Callable[[Any], T]) -> tuple[B, T]:
        """The body, and what `take` makes of it, which also puts typed values in the place of its unread members.

        Raises as an ordinary decoder of the body, with the place of what is wrong in the whole of it.
        """
        try:
            body: Any = self._unread.decode(data)
            return body, take(body)
        except msgspec.ValidationError:
            self._plain.decode(data)
            raise  # never: what is wrong with a part is wrong with the whole
