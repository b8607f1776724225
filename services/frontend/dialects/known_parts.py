"""What was made of a part of a request body, found again by that part's bytes. Memory of a dialect, nothing else.

An agent sends the same tools with every request of every session. To decode 20 of them and to make their specs takes
60 us, to hash and compare their 62 KB of JSON 11.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

KNOWN_BYTES = 4 * 1024 * 1024
"""What all parts of one kind may have together, as JSON: the tools of some 60 agents."""
MIN_BYTES = 256
"""A smaller part is read as soon."""

T = TypeVar("T")
B = TypeVar("B")


class KnownParts(Generic[T]):
    """Parts of one kind. Thread-safe; what was used least lately goes first. What is kept must not be changed."""

    def __init__(self, max_bytes: int = KNOWN_BYTES) -> None:
        self._limit = max_bytes
        self._known: OrderedDict[bytes, T] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0
        """Bytes that are held, as JSON."""

    def get(self, data: bytes, make: Callable[[bytes], T]) -> T:
        """What `make` once made of these bytes. Raises as `make`, and then nothing is kept."""
        if not MIN_BYTES <= len(data) <= self._limit // 4:
            return make(data)
        with self._lock:
            if data in self._known:
                self._known.move_to_end(data)
                return self._known[data]
        made = make(data)
        with self._lock:
            if data not in self._known:
                self._known[data] = made
                self.size += len(data)
            while self.size > self._limit:
                oldest, _ = self._known.popitem(last=False)
                self.size -= len(oldest)
        return made


class BodyWithTools(Generic[B, T]):
    """Reads bodies of the type `body`, whose `tools` may be known.

    `make`: what is to be kept of them; `given` takes the tools out of it, as the body has them. Has no state itself.
    """

    def __init__(self, body: type[B], tools: Any, make: Callable[[Any], T], given: Callable[[T], Any]) -> None:
        """`tools`: the type that `body` gives them."""
        self._plain = msgspec.json.Decoder(body)
        unread = msgspec.defstruct(body.__name__, [("tools", Raw, Raw(b"null"))], bases=(body,), kw_only=True)
        self._unread = msgspec.json.Decoder(unread)
        self._tools = msgspec.json.Decoder(tools)
        self._make = make
        self._given = given

    def read(self, data: bytes, known: KnownParts[T]) -> tuple[B, T]:
        """The body, and what was made of its tools. Raises as an ordinary decoder of the body."""
        try:
            body: Any = self._unread.decode(data)
            made = known.get(bytes(body.tools), lambda raw: self._make(self._tools.decode(raw)))
        except msgspec.ValidationError:
            found = self._plain.decode(data)  # as a rule raises it again, now with the place in the whole body
            return found, self._make(found.tools)  # type: ignore[attr-defined]
        body.tools = self._given(made)
        return body, made
