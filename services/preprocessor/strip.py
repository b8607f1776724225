"""Removes billing headers from a conversation, and adds an instruction for its output format. Pure.

Claude Code's billing header changes between requests and defeats prefix caching. Claude Code begins its system prompt
with `x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=cli;`. Part of it is a hash of
the first user message; older builds change it with every request. With it, the prompts of two sessions of the same user
share 47 characters; without it, 221,492. The header is a system block of its own or, where a proxy merged blocks, the
start of a longer one; then the instructions may follow on the same line.

An output format (`response_format`, `text.format`) is enforced by the engine where no tool may be called. A model with
tools cannot be constrained in this way: its first token would belong to the answer, and an agent that sends a format
with every request (Codex' `--output-schema`) would never get a call. An instruction describes the format to such a
model, the same in every turn of the session."""

import json
import re
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from schemas.conversation import Conversation, Part, Text

_NAME = r"x-anthropic-billing-header:"
_LINE_END = r"[ \t]*+(?:\r\n?|\n|\Z)"
_FIELD = rf"cc[a-z_]*+=[^\s;]*+(?:;|(?={_LINE_END}))"
"""`cc_version=2.1.328.b7f;`. Only a field at the end of a line may lack the semicolon."""
_FIELDS = rf"(?:\s*+{_FIELD})++(?:{_LINE_END})?"
_HEADERS = re.compile(rf"(?:\s*+{_NAME}(?:{_FIELDS}|{_LINE_END}))+", re.IGNORECASE)
_HEADER = re.compile(_NAME, re.IGNORECASE)
_INSTRUCTIONS = frozenset(("system", "developer"))
_role = attrgetter("role")
P = TypeVar("P", bound=Part)


def strip(conversation: Conversation, *, headers: bool) -> tuple[Conversation, int]:
    """The conversation as the model sees it, and the number of billing headers that were removed (only with `headers`).
    An instruction for its output format is added."""
    stripped, removed = strip_preamble(conversation) if headers else (conversation, 0)
    return _with_format_instruction(stripped), removed


def strip_preamble(conversation: Conversation) -> tuple[Conversation, int]:
    """The conversation without billing headers, and the number of headers that were removed.

    A header is removed where a system text begins with it: in the top-level instructions and in messages of role system
    or developer, several in a row, in any letter case, and wrapped over lines. A header is its name and its fields,
    which begin with `cc`; with the line end, if nothing else is on the line. White space before it is removed as well.
    All that follows stays byte for byte, on the same line too; a block or message with only white space left is
    dropped. Texts of users, the model and tools stay as they are, and so does a system text that quotes the header
    further down."""
    system, removed = _strip_parts(conversation.system)
    messages = conversation.messages
    instructions = [at for at, role in enumerate(map(_role, messages)) if role in _INSTRUCTIONS]
    stripped = {at: _strip_parts(messages[at].parts) for at in instructions}
    if changed := {at: parts for at, (parts, lines) in stripped.items() if lines}:
        removed += sum(lines for _, lines in stripped.values())
        messages = [
            replace(message, parts=changed[at]) if at in changed else message
            for at, message in enumerate(messages)
            if changed.get(at, True)
        ]
    return (replace(conversation, system=system, messages=messages), removed) if removed else (conversation, 0)


def _with_format_instruction(conversation: Conversation) -> Conversation:
    """The conversation with its format among the instructions, if it has tools."""
    output = conversation.format
    if output is None or not conversation.tools:
        return conversation
    if output.schema is None:
        text = "Your final answer, when you call no more tools, must be one JSON object and nothing else."
    else:
        schema = json.dumps(output.schema, ensure_ascii=False)
        text = "Your final answer, when you call no more tools, must be JSON that fits this schema, and nothing else:\n"
        text += schema
    return replace(conversation, system=[*conversation.system, Text(text)])


def _strip_parts(parts: list[P]) -> tuple[list[P], int]:
    kept: list[P] = []
    removed = 0
    for part in parts:
        headers = _HEADERS.match(part.text) if isinstance(part, Text) else None
        if headers is None:
            kept.append(part)
            continue
        removed += len(_HEADER.findall(headers[0]))
        if (rest := headers.string[headers.end() :]).strip():
            kept.append(replace(part, text=rest))
    return kept, removed
