"""Keeps the prompts that the next ones are compared with, within a bound of memory. Pure."""

import msgspec
from cachetools import LRUCache
from msgspec import Struct

from schemas.conversation import Conversation
from schemas.requests import ParseContext
from services.tokenization.segments import TokenIds

_decode_context = msgspec.json.Decoder(ParseContext).decode


class StoredPrompt(Struct, frozen=True, eq=False):
    """A prompt with which the next one is compared. Kept for the turns that were used last."""

    conversation: Conversation
    stripped: Conversation
    """What the model is to see of it: without billing headers."""
    ids: TokenIds
    """Empty: unknown."""
    context: bytes = b""
    """The parse context, as JSON."""
    keys: list[int] = []
    """Keys of its history (`SessionFinder.history_keys`)."""
    characters: int = 0
    """Characters of its messages."""

    @property
    def size(self) -> int:
        """Bytes, about: an id, and the text that it stands for."""
        return 12 * len(self.ids) + 8 * len(self.keys) + len(self.context) + 4096


class PromptStore:
    """The prompts of the turns that were used last."""

    def __init__(self, max_bytes: int) -> None:
        self._prompts: LRUCache[str, StoredPrompt] = LRUCache(max_bytes, lambda prompt: prompt.size)

    def get(self, turn: str) -> StoredPrompt | None:
        """A turn's prompt, which then counts as used."""
        return self._prompts.get(turn)

    def put(self, turn: str, prompt: StoredPrompt) -> None:
        """Keeps a prompt, if it is within the bound."""
        if prompt.size <= self._prompts.maxsize:
            self._prompts[turn] = prompt

    def drop(self, turn: str) -> None:
        """Forgets a prompt."""
        self._prompts.pop(turn, None)

    def ids(self, turn: str) -> "TokenIds | None":
        """The tokens of a prompt, where they are still known."""
        prompt = self._prompts.get(turn)
        return None if prompt is None or not prompt.ids else prompt.ids

    def context(self, turn: str) -> ParseContext | None:
        """How a turn's output is parsed, where that is still known."""
        prompt = self._prompts.get(turn)
        return None if prompt is None or not prompt.context else _decode_context(prompt.context)
