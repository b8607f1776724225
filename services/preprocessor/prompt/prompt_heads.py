"""Recognizes prompt heads: the tools and instructions with which prompts of many sessions begin.

A short conversation is rendered whole. The ids and the hash of its head come from the prompts before it.
"""

from collections.abc import Sequence
from sys import getsizeof
from typing import Any

from services.preprocessor.prompt.window import is_user
from services.runtime.branch_cache import BranchCache
from services.templates.chat_template import Message
from services.tokenization.encoder import StablePrefix

MIN_CHARS = 4096
"""Shorter heads are encoded as fast as they are looked up."""
_KEY_CHARS = 256
_QUESTION_CHARS = 256


class PromptHeads:
    """Prompt heads by tenant and first characters. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds text and ids."""
        self._heads: BranchCache[StablePrefix] = BranchCache(max_bytes, lambda head: 2 * getsizeof(head.text))

    def find(self, tenant: str | None, text: str, messages: Sequence[Message]) -> StablePrefix | None:
        """The head of a prompt's text, which these messages were rendered to; None where it is short or unclear."""
        if len(text) < MIN_CHARS:
            return None
        key = (tenant, text[:_KEY_CHARS])
        head = next((head for head in self._heads.get(key) if text.startswith(head.text)), None)
        if head is None:
            end = text.rfind(_first_question(messages))
            if end < MIN_CHARS:
                return None
            head = StablePrefix(text[:end])
        self._heads.put(key, head)
        return head

    def clear(self) -> None:
        """Forgets everything."""
        self._heads.clear()


def _first_question(messages: Sequence[Message]) -> str:
    """The beginning of the user's first message; without one, a text that occurs nowhere."""
    content: Any = next((message["content"] for message in messages if is_user(message)), "")
    if isinstance(content, list):
        content = content[0].get("text", "") if content else ""
    return str(content).strip()[:_QUESTION_CHARS] or "\x00"
