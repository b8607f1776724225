"""Makes the conversation that the model is to see: without billing headers, with an instruction
for the format of the answer, and with its calls and results in pairs. Pure.

A model with tools cannot be constrained to a format: its first token would belong to the answer,
and an agent that sends a format with every request (Codex' `--output-schema`) would never get a
call. An instruction describes the format to such a model, the same in every turn of the session.

Claude Code's billing header changes between requests and defeats prefix caching. Claude Code begins
its system prompt with `x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=cli;`.
Part of it is a hash of the first user message; older builds change it with every request. With it,
the prompts of two sessions of the same user share 47 characters; without it, 221,492. The header is
a system block of its own or, where a proxy merged blocks, the start of a longer one; then the
instructions may follow on the same line.
"""

import json
import re
from operator import is_
from typing import TypeVar

from msgspec.structs import replace

from schemas.conversation import Conversation, Message, Part, Text
from services.preprocessor.prompt.call_pairs import join_pairs
from services.templates.messages import is_instruction

_NAME = r"x-anthropic-billing-header:"
_LINE_END = r"[ \t]*+(?:\r\n?|\n|\Z)"
_FIELD = rf"cc[a-z_]*+=[^\s;]*+(?:;|(?={_LINE_END}))"
"""`cc_version=2.1.328.b7f;`. Only a field at the end of a line may lack the semicolon."""
_FIELDS = rf"(?:\s*+{_FIELD})++(?:{_LINE_END})?"
_HEADERS = re.compile(rf"(?:\s*+{_NAME}(?:{_FIELDS}|{_LINE_END}))+", re.IGNORECASE)
_ANY_OBJECT = (
    "Your final answer, when you call no more tools, must be one JSON object and nothing else."
)
_SCHEMA_FOLLOWS = (
    "Your final answer, when you call no more tools, must be JSON that fits this schema, "
    "and nothing else:\n"
)
P = TypeVar("P", bound=Part)


def strip(conversation: Conversation, *, preamble: bool = True) -> Conversation:
    """The conversation that the model is to see. `preamble`: billing headers are removed."""
    if preamble:
        conversation = strip_preamble(conversation)
    conversation = with_format_instruction(conversation)
    return replace(conversation, messages=join_pairs(conversation.messages))


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


def with_format_instruction(conversation: Conversation) -> Conversation:
    """The conversation with its format among the instructions, if it has tools."""
    output = conversation.format
    if output is None or not conversation.tools:
        return conversation
    text = _ANY_OBJECT
    if output.schema is not None:
        text = _SCHEMA_FOLLOWS + json.dumps(output.schema, ensure_ascii=False)
    return replace(conversation, system=[*conversation.system, Text(text)])
