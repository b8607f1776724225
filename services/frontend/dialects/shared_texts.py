"""Long texts with which many requests begin, held once. Memory of a dialect, nothing else.

An open turn keeps its conversation, for another attempt. An agent's instructions are most of that: with them a thousand
streams of Claude Code hold 179 MB, without 2. To know them again costs 3 us.
"""

import threading
from collections import OrderedDict
from typing import Any

from schemas.conversation import Conversation, Text

SHARED_BYTES = 8 * 1024 * 1024
"""What all shared texts may have together, in characters: the instructions of some 45 agents."""
MIN_CHARS = 4096
_EDGE = 64
_TURNS = 2
"""Instructions of clients that send them as messages, and what stands before the first words of a user."""


class SharedTexts:
    """Texts by how they begin and end. Thread-safe; what was used least lately goes first."""

    def __init__(self, max_chars: int = SHARED_BYTES) -> None:
        self._limit = max_chars
        self._known: OrderedDict[tuple[int, str, str], Text] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0
        """Characters that are held."""

    def share(self, conversation: Conversation) -> None:
        """Puts known texts in the place of equal ones. The conversation must be new: nobody else reads it yet."""
        lists: list[list[Any]] = [conversation.system, *[turn.parts for turn in conversation.turns[:_TURNS]]]
        for parts in lists:
            for at, part in enumerate(parts):
                if isinstance(part, Text) and MIN_CHARS <= len(part.text) <= self._limit // 4:
                    parts[at] = self._same(part)

    def _same(self, text: Text) -> Text:
        key = (len(text.text), text.text[:_EDGE], text.text[-_EDGE:])
        with self._lock:
            known = self._known.get(key)
            if known is None or known.text != text.text:  # of texts of one length with equal ends the newest is kept
                self.size += len(text.text) if known is None else 0
                known = self._known[key] = text
            self._known.move_to_end(key)
            while self.size > self._limit:
                self.size -= self._known.popitem(last=False)[0][0]
        return known
