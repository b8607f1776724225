"""Finds what a client changed between two requests of a session, in the order of a prompt. Pure."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Media, Message, Part, Reasoning, Result, Text, ToolSpec
from services.preprocessor.drift import kind_of_change
from services.preprocessor.strip import strip_preamble
from services.tokenization.segments import common_prefix
from turnwire_tools.inspector.turns import Change, ChangeKind
from turnwire_tools.tap.answers import answers_in, content_of

SHOWN = 160
"""Characters of a difference that are shown, on each side."""
BEFORE = 40
"""Characters shown before the first difference."""
SETTINGS = ("thinking", "template_kwargs", "format", "verbosity")
"""Fields of a request that templates may read."""


def changes_of(before: Conversation, answer: Sequence[Part], now: Conversation) -> list[Change]:
    """The changes from a conversation with its answer to the next one. An extended history does not count; billing
    headers, which the preprocessor removes, are left out where there is another change."""
    was, is_now = strip_preamble(before)[0], strip_preamble(now)[0]
    changes = [*_tools(was.tools, is_now.tools), *_system(was, is_now)]
    changes += _differing("settings", _settings(was), _settings(is_now))
    changes += _history(was.messages, answer, is_now.messages)
    return changes or _system(before, now)


def _differing(kind: ChangeKind, was: Mapping[str, str], now: Mapping[str, str]) -> list[Change]:
    """The texts that differ, by their names."""
    pairs = ((name, was.get(name, ""), now.get(name, "")) for name in {**was, **now})
    return [Change(kind, name, *_around(before, after)) for name, before, after in pairs if before != after]


def _tools(was: Sequence[ToolSpec], now: Sequence[ToolSpec]) -> list[Change]:
    old, new = [tool.name for tool in was], [tool.name for tool in now]
    if sorted(old) != sorted(new):
        gone, come = [name for name in old if name not in new], [name for name in new if name not in old]
        return [Change("tools", "the tool list", _list(gone, old), _list(come, new))]
    if old != new:
        return [Change("tools", "the order of the tools", _list(old, old), _list(new, new))]
    return _differing("tools", *({f"the tool {tool.name}": _text(tool) for tool in tools} for tools in (was, now)))


def _list(names: Sequence[str], every: Sequence[str]) -> str:
    return ", ".join(f"{name} ({every.index(name) + 1}.)" for name in names)[:SHOWN] or "none"


def _system(was: Conversation, now: Conversation) -> list[Change]:
    old, new = (
        {f"system text {number}": part.text for number, part in enumerate(conversation.system, 1)}
        for conversation in (was, now)
    )
    changes = []
    for change in _differing("system", old, new):
        before, after = old.get(change.where, ""), new.get(change.where, "")
        varies = kind_of_change(before, after, len(common_prefix(before, after))) if before and after else ""
        changes.append(replace(change, varies=varies))
    return changes


def _settings(conversation: Conversation) -> dict[str, str]:
    return {f"the setting {name}": _text(getattr(conversation, name)) for name in SETTINGS}


def _history(was: Sequence[Message], answer: Sequence[Part], now: Sequence[Message]) -> list[Change]:
    changes: list[Change] = []
    if len(now) < len(was):
        # A client that edits a message sends the rest again; one that summarizes its history sends fewer.
        changes.append(Change("history", "the history", f"{len(was)} messages", f"{len(now)} messages"))
    for number, (before, after) in enumerate(zip(was, now, strict=False), 1):
        change = None if before is after else _message(number, before, after)
        if change is not None:
            changes.append(change)
            if change.kind != "reasoning":
                return changes  # what follows moves with it
    if len(now) > len(was) and answer:
        where = f"message {len(was) + 1} (assistant)"
        if now[len(was)].role != "assistant":
            return [*changes, Change("answer", where, _parts(answer), "left out")]
        sent = answers_in(now[len(was) :])[0]
        if content_of(sent) != content_of(answer):
            changes.append(Change("answer", where, *_around(_parts(answer), _parts(sent))))
        elif _has_reasoning(answer) and not _has_reasoning(sent):
            changes.append(Change("reasoning", where, _parts(answer)[:SHOWN], "no reasoning"))
    return changes


def _message(number: int, before: Message, after: Message) -> Change | None:
    where = f"message {number} ({before.role})"
    if before.role != after.role:
        return Change("history", where, _parts(before.parts)[:SHOWN], f"{after.role}: {_parts(after.parts)}"[:SHOWN])
    rest_before, rest_after = (_without_reasoning(turn.parts) for turn in (before, after))
    is_answer = before.role == "assistant"
    if rest_before == rest_after or (is_answer and content_of(before.parts) == content_of(after.parts)):
        if _has_reasoning(before.parts) == _has_reasoning(after.parts):
            return None
        return Change("reasoning", where, _parts(before.parts)[:SHOWN], _parts(after.parts)[:SHOWN])
    return Change("message", where, *_around(_parts(rest_before), _parts(rest_after)))


def _has_reasoning(parts: Sequence[Part]) -> bool:
    return any(isinstance(part, Reasoning) for part in parts)


def _without_reasoning(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, Reasoning)]


def _parts(parts: Sequence[Part]) -> str:
    return "\n".join(map(_part, parts))


def _part(part: Part) -> str:
    match part:
        case Text():
            return part.text
        case Reasoning():
            return f"[reasoning] {part.text or '(sealed)'}"
        case Call():
            return f"[call {part.name}] {part.arguments}"
        case Result():
            texts = (inner.text if isinstance(inner, Text) else _text(inner) for inner in part.parts)
            return "[result] " + "\n".join(texts)
        case Media():
            return f"[{part.kind} {part.media_type}]"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _around(before: str, after: str) -> tuple[str, str]:
    """Both texts around their first difference."""
    start = max(0, len(common_prefix(before, after)) - BEFORE)
    cut: Callable[[str], str] = lambda text: ("…" if start else "") + text[start : start + SHOWN]  # noqa: E731
    return cut(before), cut(after)
