"""Removes Claude Code's billing header, which changes between requests and defeats prefix caching.
Pure.

Claude Code begins its system prompt with `x-anthropic-billing-header: cc_version=2.1.328.b7f;
cc_entrypoint=cli;`. Part of it is a hash of the first user message; older builds change it with
every request. With it, the prompts of two sessions of the same user share 47 characters; without
it, 221,492. The header is a system block of its own or, where a proxy merged blocks, the start of a
longer one; then the instructions may follow on the same line.
"""

import re
from operator import is_
from typing import TypeVar

from msgspec.structs import replace

from schemas.conversation import Conversation, Message, Part, Text
from services.templates.messages import is_instruction

_NAME = r"x-anthropic-billing-header:"
_LINE_END = r"[ \t]*+(?:\r\n?|\n|\Z)"
_FIELD = rf"cc[a-z_]*+=[^\s;]*+(?:;|(?={_LINE_END}))"
"""`cc_version=2.1.328.b7f;`. Only a field at the end of a line may lack the semicolon."""
_FIELDS = rf"(?:\s*+{_FIELD})++(?:{_LINE_END})?"
_HEADERS = re.compile(rf"(?:\s*+{_NAME}(?:{_FIELDS}|{_LINE_END}))+", re.IGNORECASE)
P = TypeVar("P", bound=Part)


def strip_preamble(conversation: Conversation) -> Conversation:
    """The conversation without billing headers; the same object if it has none.

    A header is removed where a system text begins with it: in the top-level instructions and in
    messages of role system or developer, several in a row, in any letter case, and wrapped over
    lines. A header is its name and its fields, which begin with `cc`; with the line end, if nothing
    else is on the line. White space before it is removed as well. All that follows stays byte for
    byte, on the same line too; a block or message with only white space left is dropped. Texts of
    users, the model and tools stay as they are, and so does a system text that quotes the header
    further down."""
    system = _strip_parts(conversation.system)
    messages = _strip_messages(conversation.messages)
    if system is conversation.system and messages is conversation.messages:
        return conversation
    return replace(conversation, system=system, messages=messages)


def _strip_messages(messages: list[Message]) -> list[Message]:
    """The messages without headers; the same list if there are none."""
    stripped: dict[int, list[Part]] = {}
    for index, message in enumerate(messages):
        if is_instruction(message):
            parts = _strip_parts(message.parts)
            if parts is not message.parts:
                stripped[index] = parts
    if not stripped:
        return messages

    kept: list[Message] = []
    for index, message in enumerate(messages):
        if index not in stripped:
            kept.append(message)
        elif stripped[index]:
            kept.append(replace(message, parts=stripped[index]))
    return kept


def _strip_parts(parts: list[P]) -> list[P]:
    """The parts without headers; the same list if there are none."""
    stripped: list[P] = []
    for part in parts:
        text = _text_after_headers(part)
        if text is None:
            stripped.append(part)
        elif text.strip():
            stripped.append(replace(part, text=text))
    if len(stripped) == len(parts) and all(map(is_, stripped, parts)):
        return parts
    return stripped


def _text_after_headers(part: Part) -> str | None:
    """The text after the headers with which a part begins; None: it begins with none."""
    if not isinstance(part, Text):
        return None
    headers = _HEADERS.match(part.text)
    return None if headers is None else part.text[headers.end() :]
