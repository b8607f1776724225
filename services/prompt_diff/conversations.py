"""Compares two conversations of a session: tools, instructions, settings and history."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

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
)
from services.ledger.turns.chain import answers_in, content_of
from services.prompt_diff.change import SHOWN, Change, ChangeKind, Variation, edited, replaced
from services.prompt_diff.texts import variation, words_at

SETTINGS = ("thinking", "template_kwargs", "format", "verbosity")
"""Fields of a request that templates may read."""

LEFT_OUT = "left out"
"""`Change.now` of messages that a client left out."""
INSERTED = "not there"
"""`Change.was` of messages that a client inserted."""
MAX_MOVED = 64
"""Longest run of messages that is recognized as left out or inserted."""


def conversation_changes(
    before: Conversation, answer: Sequence[Part], now: Conversation
) -> list[Change]:
    """Returns the changes from a conversation with its answer to the next one; an extended history
    is not a change."""
    changes = tool_list_changes(_tool_names(before), _tool_names(now))
    if not changes:
        changes = _differing("tools", _tools(before), _tools(now))
    changes += system_changes(before, now)
    changes += _differing("settings", _settings(before), _settings(now))
    return changes + _history_changes(before.messages, answer, now.messages)


def system_changes(before: Conversation, now: Conversation) -> list[Change]:
    """Returns what changed in the leading instructions."""
    return _differing("system", _system(before), _system(now))


def tool_list_changes(was: Sequence[str], now: Sequence[str]) -> list[Change]:
    """Returns whether tools came, went or moved, by their names in the prompt's order."""
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
            varies = variation(*words_at(old, new))
        changes.append(edited(kind, name, old, new, varies))
    return changes


def _history_changes(
    was: list[Message], answer: Sequence[Part], now: list[Message]
) -> list[Change]:
    changes: list[Change] = []
    pairs = () if now[: len(was)] == was else enumerate(zip(was, now, strict=False))
    for at, (before, after) in pairs:
        if before == after:
            continue
        change = _message_change(f"message {at + 1} ({before.role})", before, after)
        if change is None:
            continue
        if change.kind == "reasoning":
            changes.append(change)
            continue
        moved = _left_out(was, now, at) or _inserted(was, now, at)
        if moved is not None:
            return [*changes, moved]  # later messages are as before
        return [*_shortened(was, now), *changes, change]

    changes = _shortened(was, now) + changes
    following = now[len(was) :]
    if following and answer:
        where = f"message {len(was) + 1} (assistant)"
        change = _answer_change(where, answer, following)
        if change is not None:
            changes.append(change)
    return changes


def _shortened(was: Sequence[Message], now: Sequence[Message]) -> list[Change]:
    """Returns that there are fewer messages. A client that edits a message sends the rest again;
    one that summarizes its history sends fewer."""
    if len(now) >= len(was):
        return []
    return [Change("history", "the history", f"{len(was)} messages", f"{len(now)} messages")]


def _left_out(was: Sequence[Message], now: Sequence[Message], at: int) -> Change | None:
    """Returns that messages from `at` on were left out, if all others of the history follow."""
    for end in range(at + 1, min(len(was), at + 1 + MAX_MOVED)):
        if _begins_with(now[at:], was[end:]):
            return replaced("history", _numbered(was, at, end), _words(was[at].parts), LEFT_OUT)
    return None


def _inserted(was: Sequence[Message], now: Sequence[Message], at: int) -> Change | None:
    """Returns that messages were inserted at `at`, if the rest of the history follows them."""
    for end in range(at + 1, min(len(now), at + 1 + MAX_MOVED)):
        if _begins_with(now[end:], was[at:]):
            return replaced("history", _numbered(now, at, end), INSERTED, _words(now[at].parts))
    return None


def _begins_with(messages: Sequence[Message], others: Sequence[Message]) -> bool:
    if len(messages) < len(others):
        return False
    pairs = zip(messages, others, strict=False)
    return all(
        message.role == other.role and _is_same_content(message, other) for message, other in pairs
    )


def _numbered(messages: Sequence[Message], start: int, end: int) -> str:
    if end - start == 1:
        return f"message {end} ({messages[start].role})"
    return f"messages {start + 1} to {end}"


def _answer_change(
    where: str, answer: Sequence[Part], following: Sequence[Message]
) -> Change | None:
    """Returns how the answer came back at the start of the messages that follow."""
    if following[0].role != "assistant":
        return Change("answer", where, _words(answer), LEFT_OUT)
    sent = answers_in(following)[0]
    if content_of(sent) != content_of(answer):
        return edited("answer", where, _words(answer), _words(sent))
    if _has_reasoning(answer) and not _has_reasoning(sent):
        return replaced("reasoning", where, _words(answer), "no reasoning")
    return None


def _message_change(where: str, before: Message, after: Message) -> Change | None:
    if before.role != after.role:
        new_words = f"{after.role}: {_words(after.parts)}"
        return replaced("history", where, _words(before.parts), new_words)

    if not _is_same_content(before, after):
        old_words = _words(_without_reasoning(before.parts))
        new_words = _words(_without_reasoning(after.parts))
        return edited("message", where, old_words, new_words)

    if _has_reasoning(before.parts) != _has_reasoning(after.parts):
        return replaced("reasoning", where, _words(before.parts), _words(after.parts))
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
