"""Compares a prompt with the one before it in its session: where they differ first, what that
costs, and why. Pure.

Each prompt of an agent should begin with the one before it and that one's answer. Where it does
not, the engine computes everything after the first difference again. Conversations show what a
client changed; where the earlier one is not kept, digests of its parts show which of them it
changed, or the rendered texts what varies in them.
"""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from xxhash import xxh3_128_digest

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    ToolReference,
    ToolSpec,
)
from services.ledger.chain import parts_of, text_and_calls
from services.ledger.keys import squeeze
from services.templates.messages import is_answer
from services.tokenization.segments import TokenIds, common_prefix

ChangeKind: TypeAlias = Literal[
    "tools", "system", "settings", "message", "reasoning", "answer", "history"
]
Variation: TypeAlias = Literal["date", "id", "number", "text"]

SHOWN = 160
"""Characters of a change that are shown, on each side."""
BEFORE = 40
"""Characters before the first difference among them."""
WORD = 60
"""Characters of a word that are shown where only texts are compared."""
SETTINGS = ("thinking", "template_kwargs", "format", "verbosity")
"""Fields of a request that templates may read."""
PARTS: Mapping[str, ChangeKind] = {
    "system": "system",
    "tools": "tools",
    **dict.fromkeys(SETTINGS, "settings"),
    "messages": "message",
    "history": "history",
    "deferred": "tools",
}
"""Parts of a request that are compared by digests, in the order of changes. `messages`: one was
edited; `history`: it is shorter than before; `deferred`: tools that are not in the tool list."""
_DATE = re.compile(
    r"\d{4}-\d\d?-\d\d?|\d\d?:\d\d|\d\d?/\d\d?/\d{2,4}"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b"
)
_ID = re.compile(r"(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}|\b[0-9a-f]{8,}\b")
_DIGIT = re.compile(r"\d")
_WORD_START, _WORD_END = re.compile(r"[\w:/.+-]+"), re.compile(r"[\w:/.+-]+\Z")
_VARIATIONS: tuple[tuple[Variation, re.Pattern[str]], ...] = (
    ("date", _DATE),
    ("id", _ID),
    ("number", _DIGIT),
)
_NO_IDS: TokenIds = array("I")


class Change(Struct, frozen=True, omit_defaults=True):
    """One change between two prompts."""

    kind: ChangeKind
    where: str
    """What changed: `the tool Bash`, `system text 2`, `message 3 (user)`."""
    was: str = ""
    now: str = ""
    varies: Variation | Literal[""] = ""
    """What kind of text varies in instructions."""


class ComparedPrompt(Struct, frozen=True, kw_only=True):
    """What is known of a prompt. What either of two prompts lacks is not compared."""

    ids: TokenIds = _NO_IDS
    conversation: Conversation | None = None
    text: str = ""
    """The rendered text; of the earlier prompt without its turn opening."""
    head: int = 0
    """Characters of `text` before the first answer."""
    tools: Sequence[str] = ()
    """Names of the tools in `text`."""
    digests: Mapping[str, bytes] = {}
    """Digests of the request's parts (`digests_of`)."""
    states: Sequence[bytes] = ()
    """Digests of the history before each turn of the model and this one (`SentTurn.state`)."""


class Difference(Struct, frozen=True):
    """How a prompt departs from the one before it and that one's answer."""

    at: int | None
    """The first token that differs; None: the tokens are unknown."""
    again: int
    """Earlier tokens after that place, which are computed again."""
    changes: list[Change]
    """In the order of the prompt; of two texts only the first."""


def difference(
    before: ComparedPrompt,
    now: ComparedPrompt,
    answer: Sequence[Part] = (),
    answer_ids: TokenIds = _NO_IDS,
) -> Difference:
    """Compares a prompt with the one before it in its session, and with that one's answer where it
    is known."""
    at: int | None = None
    again = 0
    if before.ids and now.ids:
        expected = before.ids + answer_ids
        at = len(common_prefix(expected, now.ids))
        again = len(expected) - at
    return Difference(at, again, _changes(before, now, answer))


def _changes(before: ComparedPrompt, now: ComparedPrompt, answer: Sequence[Part]) -> list[Change]:
    """Returns the changes by the best that both prompts have: conversations, digests or texts."""
    if before.conversation is not None and now.conversation is not None:
        return _conversation_changes(before.conversation, answer, now.conversation)
    if before.digests and now.digests:
        return _digest_changes(before, now)
    if now.text.startswith(before.text):
        return []
    return _text_changes(before, now)


def digests_of(conversation: Conversation, tools: Sequence[ToolSpec]) -> dict[str, bytes]:
    """Returns digests of the request's parts without its messages.

    `tools`: as the model sees them.
    """
    values: dict[str, object] = {name: getattr(conversation, name) for name in SETTINGS}
    values["system"] = "\n".join(part.text for part in conversation.system)
    values["tools"] = _contents(tool for tool in tools if not tool.deferred)
    values["deferred"] = _contents(tool for tool in tools if tool.deferred)
    return {name: xxh3_128_digest(msgspec.json.encode(value)) for name, value in values.items()}


def _contents(tools: Iterable[ToolSpec]) -> list[tuple[object, ...]]:
    return [(tool.name, tool.description, tool.schema) for tool in tools]


def system_changes(before: Conversation, now: Conversation) -> list[Change]:
    """Returns what changed in the leading instructions."""
    return _differing("system", _system(before), _system(now))


def content_of(parts: Sequence[Part]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Returns what is the same of an answer in every form in which clients send it back: its text
    without white space, and its calls by name and value."""
    text, calls = text_and_calls(parts)
    return squeeze(text), tuple(sorted(calls))


def answers_in(messages: Sequence[Message]) -> list[list[Part]]:
    """Returns the answers of the model in a history: the parts of each run of its messages."""
    runs = groupby(messages, is_answer)
    return [parts_of(run) for of_model, run in runs if of_model]


def _digest_changes(before: ComparedPrompt, now: ComparedPrompt) -> list[Change]:
    changed = {name for name, digest in before.digests.items() if digest != now.digests.get(name)}
    if before.states[-1] not in now.states:
        changed.add("history" if len(now.states) < len(before.states) else "messages")
    return [Change(kind, name) for name, kind in PARTS.items() if name in changed]


def _text_changes(before: ComparedPrompt, now: ComparedPrompt) -> list[Change]:
    changes = _tool_list_changes(before.tools, now.tools)
    if changes:
        return changes
    old, new = _words_at(before.text, now.text)
    before_answer = before.text[: before.head]
    if now.text.startswith(before_answer):
        where = "the text after the first answer begins"
        return [Change("history", where, old[:WORD], new[:WORD])]
    where = "the text before the first answer"
    return [Change("system", where, old[:WORD], new[:WORD], _variation(old, new))]


def _variation(was: str, now: str) -> Variation:
    """Returns what kind of text varies where two texts have these words."""
    for kind, pattern in _VARIATIONS:
        if pattern.search(was) and pattern.search(now):
            return kind
    return "text"


def _words_at(was: str, now: str) -> tuple[str, str]:
    """Returns the words of both texts at their first difference."""
    offset = len(common_prefix(was, now))
    return _word_at(was, offset), _word_at(now, offset)


def _word_at(text: str, offset: int) -> str:
    start = _WORD_END.search(text, max(0, offset - WORD), offset)
    end = _WORD_START.match(text, offset, offset + WORD)
    word = "".join(part[0] for part in (start, end) if part is not None)
    return word or text[offset : offset + 1]


def _conversation_changes(
    before: Conversation, answer: Sequence[Part], now: Conversation
) -> list[Change]:
    """Returns the changes from a conversation with its answer to the next one; an extended history
    is not a change."""
    changes = _tool_list_changes(_tool_names(before), _tool_names(now))
    if not changes:
        changes = _differing("tools", _tools(before), _tools(now))
    changes += system_changes(before, now)
    changes += _differing("settings", _settings(before), _settings(now))
    return changes + _history_changes(before.messages, answer, now.messages)


def _tool_list_changes(was: Sequence[str], now: Sequence[str]) -> list[Change]:
    if sorted(was) != sorted(now):
        gone = [name for name in was if name not in now]
        new = [name for name in now if name not in was]
        return [Change("tools", "the tool list", _places(gone, was), _places(new, now))]
    if was != now:
        return [Change("tools", "the order of the tools", _places(was, was), _places(now, now))]
    return []


def _places(names: Sequence[str], among: Sequence[str]) -> str:
    return ", ".join(f"{name} ({among.index(name) + 1}. of {len(among)})" for name in names)[:SHOWN]


def _tool_names(conversation: Conversation) -> list[str]:
    return [tool.name for tool in conversation.tools]


def _tools(conversation: Conversation) -> dict[str, str]:
    return {f"the tool {tool.name}": _json(tool) for tool in conversation.tools}


def _system(conversation: Conversation) -> dict[str, str]:
    return {
        f"system text {number}": part.text for number, part in enumerate(conversation.system, 1)
    }


def _settings(conversation: Conversation) -> dict[str, str]:
    values = ((name, getattr(conversation, name)) for name in SETTINGS)
    return {f"the setting {name}": "" if value is None else _json(value) for name, value in values}


def _differing(kind: ChangeKind, was: Mapping[str, str], now: Mapping[str, str]) -> list[Change]:
    """Returns the texts that differ, by their names."""
    changes: list[Change] = []
    for name in {**was, **now}:
        old = was.get(name, "")
        new = now.get(name, "")
        if old == new:
            continue
        varies: Variation | Literal[""] = ""
        if kind == "system" and old and new:
            varies = _variation(*_words_at(old, new))
        changes.append(_edited(kind, name, old, new, varies))
    return changes


def _history_changes(
    was: Sequence[Message], answer: Sequence[Part], now: Sequence[Message]
) -> list[Change]:
    changes: list[Change] = []
    if len(now) < len(was):
        # A client that edits a message sends the rest again; one that summarizes its history sends
        # fewer.
        shorter = f"{len(was)} messages", f"{len(now)} messages"
        changes.append(Change("history", "the history", *shorter))
    for number, (before, after) in enumerate(zip(was, now, strict=False), 1):
        if before == after:
            continue
        change = _message_change(f"message {number} ({before.role})", before, after)
        if change is not None:
            changes.append(change)
            if change.kind != "reasoning":
                return changes  # what follows moves with it

    following = now[len(was) :]
    if following and answer:
        where = f"message {len(was) + 1} (assistant)"
        change = _answer_change(where, answer, following)
        if change is not None:
            changes.append(change)
    return changes


def _answer_change(
    where: str, answer: Sequence[Part], following: Sequence[Message]
) -> Change | None:
    """Returns how the answer came back at the start of the messages that follow."""
    if following[0].role != "assistant":
        return Change("answer", where, _words(answer), "left out")
    sent = answers_in(following)[0]
    if content_of(sent) != content_of(answer):
        return _edited("answer", where, _words(answer), _words(sent))
    if _has_reasoning(answer) and not _has_reasoning(sent):
        return _replaced("reasoning", where, _words(answer), "no reasoning")
    return None


def _message_change(where: str, before: Message, after: Message) -> Change | None:
    if before.role != after.role:
        new_words = f"{after.role}: {_words(after.parts)}"
        return _replaced("history", where, _words(before.parts), new_words)

    if not _is_same_content(before, after):
        old_words = _words(_without_reasoning(before.parts))
        new_words = _words(_without_reasoning(after.parts))
        return _edited("message", where, old_words, new_words)

    if _has_reasoning(before.parts) != _has_reasoning(after.parts):
        return _replaced("reasoning", where, _words(before.parts), _words(after.parts))
    return None


def _is_same_content(before: Message, after: Message) -> bool:
    """Returns whether messages of one role are the same, except for reasoning."""
    if _without_reasoning(before.parts) == _without_reasoning(after.parts):
        return True
    return before.role == "assistant" and content_of(before.parts) == content_of(after.parts)


def _without_reasoning(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, Reasoning)]


def _has_reasoning(parts: Sequence[Part]) -> bool:
    return any(isinstance(part, Reasoning) for part in parts)


def _words(parts: Sequence[Part]) -> str:
    return "\n".join(map(_part_words, parts))


def _part_words(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Reasoning():
            return f"[reasoning] {part.text or '(sealed)'}"
        case Call():
            return f"[call {part.name}] {part.arguments}"
        case Result():
            return "[result] " + "\n".join(map(_content_words, part.parts))
        case Media():
            return f"[{part.kind} {part.media_type}]"


def _content_words(content: Text | Media | ToolReference) -> str:
    return content.text if isinstance(content, Text) else _json(content)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _replaced(kind: ChangeKind, where: str, was: str, now: str) -> Change:
    """Returns a change of a whole text, with the beginnings of both."""
    return Change(kind, where, was[:SHOWN], now[:SHOWN])


def _edited(
    kind: ChangeKind, where: str, was: str, now: str, varies: Variation | Literal[""] = ""
) -> Change:
    """Returns a change within a text, with the passage that differs and a few characters around
    it."""
    same = len(common_prefix(was, now))
    same_after = len(common_prefix(was[same:][::-1], now[same:][::-1]))
    start = max(0, same - BEFORE)
    left_out = max(0, same_after - BEFORE)
    old = _excerpt(was, start, left_out)
    new = _excerpt(now, start, left_out)
    return Change(kind, where, old, new, varies)


def _excerpt(text: str, start: int, left_out: int) -> str:
    """Returns the text from `start` on, without the last `left_out` characters, and with signs for
    what is missing."""
    excerpt = text[start : len(text) - left_out][:SHOWN]
    before = "…" if start else ""
    after = "…" if left_out else ""
    return before + excerpt + after
