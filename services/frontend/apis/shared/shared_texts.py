"""Shares long instructions: a thousand streams of an agent take 2 MB with one copy of them, 179 MB without. Pure."""

from typing import Any

from schemas.conversation import Conversation, Text
from services.runtime.memo import Memo

MIN_CHARS = 4096
"""A shorter text is not shared."""
_MESSAGES = 2
"""Some clients send instructions as messages, or put them before the user's first words."""


def share_texts(conversation: Conversation, texts: Memo[Any]) -> None:
    """Replaces long instructions by equal ones of the memo. Nothing else may read the conversation yet."""
    lists: list[list[Any]] = [conversation.system, *(message.parts for message in conversation.messages[:_MESSAGES])]
    for parts in lists:
        for at, part in enumerate(parts):
            if isinstance(part, Text) and len(part.text) >= MIN_CHARS:
                parts[at] = texts.get(part.text, Text)
