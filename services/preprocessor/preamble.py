"""Claude Code's billing header: the one line of a prompt that differs for nobody's good.

Claude Code begins its system prompt with `x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=cli;`.
Part of it hashes the first user message, older builds change it with every request: left in, it parts the prompts of
two sessions (captures 16-a and 16-b) after 47 characters; stripped, after 221,492. It stands in a system block of its
own or, where a proxy merged blocks, at the start of a longer one.
"""

import re

from msgspec.structs import replace

from schemas.conversation import Conversation, Part, Text, Turn

_HEADERS = re.compile(r"(?:\s*x-anthropic-billing-header:[^\r\n]*(?:\r\n?|\n|\Z))+", re.IGNORECASE)
_LINE_END = re.compile(r"\r\n?|\n")


def strip_preamble(conversation: Conversation) -> tuple[Conversation, int]:
    """The conversation without billing headers, and how many header lines were removed.

    A header counts where a system text begins with it, several in a row included, in any letter case and with any line
    end: in the top-level instructions and in turns of role system or developer. White space before it goes with it,
    what follows stays byte for byte; a block or turn of which only white space is left is dropped. What users, the
    model and tools say is never looked at, and a system text that quotes the header further down is left alone.
    """
    system: list[Text] = []
    turns: list[Turn] = []
    removed = 0
    for text in conversation.system:
        rest, lines = _strip(text.text)
        removed += lines
        if not lines:
            system.append(text)
        elif rest.strip():
            system.append(Text(rest))
    for turn in conversation.turns:
        parts, lines = _strip_parts(turn.parts) if turn.role in ("system", "developer") else (turn.parts, 0)
        removed += lines
        if not lines:
            turns.append(turn)
        elif parts:
            turns.append(replace(turn, parts=parts))
    if not removed:
        return conversation, 0
    return replace(conversation, system=system, turns=turns), removed


def _strip_parts(parts: list[Part]) -> tuple[list[Part], int]:
    kept: list[Part] = []
    removed = 0
    for part in parts:
        rest, lines = _strip(part.text) if isinstance(part, Text) else ("", 0)
        removed += lines
        if not lines:
            kept.append(part)
        elif rest.strip():
            kept.append(Text(rest))
    return kept, removed


def _strip(text: str) -> tuple[str, int]:
    headers = _HEADERS.match(text)
    if headers is None:
        return text, 0
    lines = sum(1 for line in _LINE_END.split(headers.group()) if line.strip())
    return text[headers.end() :], lines
