"""A cache of what was made of the parts of a request body that clients repeat: tools and long instructions.

An agent sends the same tools and instructions with every request. To find 20 tools again (62 KB of JSON) takes 6 us; to
decode them, make their specs and check their depth takes 250 us. All open turns of a session share what is found: with
one copy of the instructions a thousand streams of Claude Code hold 2 MB instead of 179.
"""

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from cachetools import LRUCache
from msgspec import Raw
from xxhash import xxh3_64_intdigest

from schemas.conversation import Conversation, Text
from services.frontend.apis.common.decode import NULL

KNOWN_SIZE = 12 * 1024 * 1024
"""Bytes of JSON and characters of text that one cache holds: the tools and instructions of some 50 agents."""
MIN_SIZE = 256
"""A smaller part is read as fast as it is found."""
MIN_CHARS = 4096
"""A shorter text is not shared."""
_TURNS = 2
"""Some clients send instructions as messages, or put them before the user's first words."""

T = TypeVar("T")
B = TypeVar("B")
D = TypeVar("D", bytes, str)


class KnownParts(Generic[T]):
    """Parts of bodies by their JSON or text. Thread-safe; the least recently used go first. Values are immutable."""

    def __init__(self, max_size: int = KNOWN_SIZE) -> None:
        self._largest = max_size // 4
        self._known: LRUCache[int, tuple[bytes | str, T]] = LRUCache(max_size, lambda entry: len(entry[0]))
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes and characters that are held."""
        return int(self._known.currsize)

    def get(self, part: D, make: Callable[[D], T]) -> T:
        """The value that `make` once returned for this part. Raises as `make`; then nothing is kept."""
        if not MIN_SIZE <= len(part) <= self._largest:
            return make(part)
        key = xxh3_64_intdigest(part.encode() if isinstance(part, str) else part)
        with self._lock:
            known = self._known.get(key)
        if known is not None and known[0] == part:  # the hash is not collision-resistant
            return known[1]
        made = make(part)
        with self._lock:
            self._known[key] = part, made
        return made


def share_texts(conversation: Conversation, known: KnownParts[Any]) -> None:
    """Replaces long instructions by known equal ones. The conversation must be new: nothing else reads it yet."""
    lists: list[list[Any]] = [conversation.system, *(turn.parts for turn in conversation.turns[:_TURNS])]
    for parts in lists:
        for at, part in enumerate(parts):
            if isinstance(part, Text) and len(part.text) >= MIN_CHARS:
                parts[at] = known.get(part.text, Text)


class _ToolList(Protocol):
    @property
    def given(self) -> Any:
        """The tools as the body's type has them."""


L = TypeVar("L", bound=_ToolList)


class BodyDecoder(Generic[B, L]):
    """Decodes bodies of a type; their `tools` are decoded only where they are not known."""

    def __init__(self, body: type[B], read_tools: Callable[[bytes], L]) -> None:
        shape: Any = msgspec.defstruct(body.__name__, [("tools", Raw, NULL)], bases=(body,), kw_only=True)
        self._decoder = msgspec.json.Decoder(body)
        self._raw_tools = msgspec.json.Decoder(shape)
        self._read_tools = read_tools

    def decode(self, data: bytes, known: KnownParts[L]) -> tuple[B, L]:
        """The body and its tools. Raises as an ordinary decoder of the body, and as `read_tools`."""
        try:
            body: Any = self._raw_tools.decode(data)
            tools = known.get(bytes(body.tools), self._read_tools)
        except msgspec.ValidationError:
            self._decoder.decode(data)  # for the place of the mistake in the whole body
            raise
        body.tools = tools.given
        return body, tools
