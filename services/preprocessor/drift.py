"""Finds what changes at the front of a session's prompts, and what that costs. Pure.

Each prompt of an agent should begin with the one before. Where it does not, the engine computes everything behind the
first difference again, with every turn if the difference is a clock.

Which prompt is the one before is known from the session id and the first question, and otherwise from the history: a
request continues the one whose answers it begins with.
"""

import re
from collections.abc import Hashable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Text
from services.runtime.branch_cache import BranchCache
from services.tokenization.segments import TokenIds, common_prefix

Cause: TypeAlias = Literal["tools", "date", "id", "number", "text", "history"]
"""The tool list; a date or time; an identifier; a number; other text before the first answer; anything behind it, such
as reasoning that the template drops, or a history that its client has changed."""

SHOWN = 60
"""Characters of a difference that are reported."""
MAX_ALIKE = 32
"""Sessions without an id and with the same first question that are distinguished."""
_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?|\d\d?:\d\d|\d\d?/\d\d?/\d{2,4}"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b"
)
_ID = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}|\b[0-9a-f]{8,}\b")
_DIGIT = re.compile(r"\d")
_WORD_CHARS = re.compile(r"[\w:/.+-]")
_CAUSES: tuple[tuple[Cause, re.Pattern[str]], ...] = (("date", _DATE), ("id", _ID), ("number", _DIGIT))


class Difference(Struct, frozen=True):
    """The first difference between a prompt and the one before it in its session."""

    cause: Cause
    tokens: int
    """Tokens of the earlier prompt that are computed again."""
    was: str
    now: str


class SeenPrompt(Struct, frozen=True):
    """One prompt of a session."""

    text: str
    """All but the opening of the answer: what the next prompt should begin with."""
    head: int
    """Characters before the first answer."""
    ids: TokenIds
    tools: tuple[str, ...]
    """The names of the tools at the front."""
    answers: tuple[int, ...]
    """See `answers_of`."""

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.text) + 4 * len(self.ids) + 8 * len(self.answers) + 512


class PromptWatch:
    """Compares prompts with the last one of their session. Thread-safe; bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._last: BranchCache[SeenPrompt] = BranchCache(max_bytes, lambda one: one.size, MAX_ALIKE)
        """For each key: the last prompt of every session."""

    def look(self, key: Hashable, now: SeenPrompt, text: str, *, one_session: bool) -> Difference | None:
        """The difference to the last prompt of the same session; None where there is none, or no last prompt.

        `key`: equal for all prompts of a session. `text`: the whole prompt. `one_session`: the client gave the key's
        session id, so a request that continues none of its prompts has changed its history.
        """
        before = _continued(self._last.get(key), now, text, one_session=one_session)
        if before is not None:
            now = replace(now, head=before.head)
        self._last.put(key, now, instead_of=before)
        return None if before is None or text.startswith(before.text) else _difference(before, now, text)


def answers_of(conversation: Conversation) -> tuple[int, ...]:
    """A hash for each of the model's turns in a history, by text and call ids: what a client sends back each time."""
    return tuple(
        hash(
            (
                *(part.text for part in turn.parts if isinstance(part, Text) and not part.text.isspace()),
                *(part.call_id for part in turn.parts if isinstance(part, Call)),
            )
        )
        for turn in conversation.messages
        if turn.role == "assistant"
    )


def head_of(conversation: Conversation, text: str, end: int) -> int:
    """How many characters of a prompt come before the first answer. `end`: of the prompt, without its turn opening.

    In a session that is first seen later than at its first request, this is where the last text before the first answer
    ends. That text is searched behind those that come before it.
    """
    first = next((at for at, turn in enumerate(conversation.messages) if turn.role == "assistant"), None)
    if first is None:
        return end
    head = 0
    parts = [*conversation.system, *(part for turn in conversation.messages[:first] for part in turn.parts)]
    for part in parts:
        if isinstance(part, Text) and (wanted := part.text.strip()) and (at := text.find(wanted, head, end)) >= 0:
            head = at + len(wanted)
    return head


def _continued(alike: Sequence[SeenPrompt], now: SeenPrompt, text: str, *, one_session: bool) -> SeenPrompt | None:
    """The prompt that this one continues; `alike`: newest first. Of several, one that it begins with, or else one with
    which it shares most. Without a session id, a history that has not grown continues none: it may be another's."""
    found = [one for one in alike if one.answers == now.answers[: len(one.answers)]]
    if not one_session:
        found = [one for one in found if len(one.answers) < len(now.answers) or text.startswith(one.text)]
    if not found:
        return alike[0] if alike and one_session else None
    known = len(max(found, key=lambda one: len(one.answers)).answers)
    found = [one for one in found if len(one.answers) == known]
    begun = [one for one in found if text.startswith(one.text)]
    return begun[0] if begun else max(found, key=lambda one: len(common_prefix(one.text, text)))


def _difference(before: SeenPrompt, now: SeenPrompt, text: str) -> Difference:
    at = len(common_prefix(before.text, text))
    tokens = len(before.ids) - len(common_prefix(before.ids, now.ids))
    if before.tools != now.tools:
        return Difference("tools", tokens, *_changed_tools(before.tools, now.tools))
    cause = kind_of_change(before.text, text, at) if at < before.head else "history"
    return Difference(cause, tokens, _word_at(before.text, at)[:SHOWN], _word_at(text, at)[:SHOWN])


def kind_of_change(was: str, now: str, at: int) -> Cause:
    """What kind of text varies where two texts differ first, at `at`: `date`, `id`, `number` or other `text`."""
    one, other = _word_at(was, at), _word_at(now, at)
    return next((cause for cause, found in _CAUSES if found.search(one) and found.search(other)), "text")


def _word_at(text: str, at: int) -> str:
    start = end = at
    while start > 0 and at - start < SHOWN and _WORD_CHARS.match(text[start - 1]):
        start -= 1
    while end < len(text) and end - at < SHOWN and _WORD_CHARS.match(text[end]):
        end += 1
    return text[start:end] or text[at : at + 1]


def _changed_tools(was: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """The tools that went, and those that came, with their places."""
    gone = [name for name in was if name not in now]
    come = [f"{name} ({place + 1}. of {len(now)})" for place, name in enumerate(now) if name not in was]
    if not gone and not come:
        return "tools in one order", "the same in another"
    return ", ".join(gone)[:SHOWN], ", ".join(come)[:SHOWN]
