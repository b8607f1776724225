"""What prompts of many sessions begin with: tools and instructions, before anybody said anything.

A short conversation is rendered whole, and its text is recognized here: what its front is encoded to, and hashed to, is
known from the prompts before it.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from sys import getsizeof
from typing import Any

from services.preprocessor.encoding import Stable
from services.preprocessor.template import Message
from services.preprocessor.windows import is_user

MIN_CHARS = 4096
"""Shorter fronts are encoded as fast as they are looked up."""
BRANCHES = 8
"""Fronts that begin alike and are kept side by side."""
_KEY_CHARS = 256
_SAID_CHARS = 256


class Fronts:
    """Fronts by how they begin. Thread-safe; those used least lately go first."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds what is kept: text and ids."""
        self._limit = max_bytes
        self._known: OrderedDict[Hashable, list[Stable]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def of(self, tenant: str | None, text: str, messages: Sequence[Message]) -> Stable | None:
        """The front of a prompt's text, made of these messages; None where it is short, or cannot be told."""
        if len(text) < MIN_CHARS:
            return None
        key = (tenant, text[:_KEY_CHARS])
        with self._lock:
            branches = self._known.get(key, [])
            for at, front in enumerate(branches):
                if text.startswith(front.text):
                    branches.insert(0, branches.pop(at))
                    self._known.move_to_end(key)
                    return front
        end = text.rfind(_first_words(messages))
        if end < MIN_CHARS:
            return None
        front = Stable(text[:end])
        self._keep(key, front)
        return front

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._known.clear()
            self._size = 0

    def _keep(self, key: Hashable, front: Stable) -> None:
        with self._lock:
            branches = self._known.setdefault(key, [])
            self._known.move_to_end(key)
            branches.insert(0, front)
            self._size += _weight(front)
            if len(branches) > BRANCHES:
                self._size -= _weight(branches.pop())
            while self._size > self._limit:
                _, gone = self._known.popitem(last=False)
                self._size -= sum(map(_weight, gone))


def _first_words(messages: Sequence[Message]) -> str:
    """What the user says first; a text that stands nowhere, where nothing is said."""
    content: Any = next((message["content"] for message in messages if is_user(message)), "")
    if isinstance(content, list):
        content = content[0].get("text", "") if content else ""
    return str(content).strip()[:_SAID_CHARS] or "\x00"


def _weight(front: Stable) -> int:
    return 2 * getsizeof(front.text)
