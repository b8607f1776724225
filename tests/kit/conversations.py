"""Conversations and their messages, as the stages exchange them."""

from typing import Any

from schemas.conversation import Call, Conversation, Message, Part, Result, Text


def conversation(*messages: Message, **fields: Any) -> Conversation:
    """A conversation with these messages, or with one of the user."""
    return Conversation("m", [*messages] or [user("Hi.")], **fields)


def user(*texts: str) -> Message:
    return Message("user", [Text(text) for text in texts])


def assistant(*parts: Part | str) -> Message:
    """A message of the assistant; a string is a text."""
    return Message("assistant", [Text(p) if isinstance(p, str) else p for p in parts])


def call(name: str = "Bash", arguments: str = '{"command": "ls"}', call_id: str = "c1") -> Call:
    return Call(call_id, name, arguments)


def result(text: str = "ok", call_id: str = "c1", *, is_error: bool | None = None) -> Message:
    """A message with the result of one call."""
    return Message("tool", [Result(call_id, [Text(text)], is_error)])
