"""Finds what a client changed between two requests of a session, in the order of a prompt. Pure."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Media, Part, Reasoning, Result, Text, ToolSpec, Turn
from services.cli.bus.answers import answers_in, content_of
from services.cli.inspector.turns import Change, ChangeKind
from services.preprocessor.drift.analysis import kind_of_change
from services.preprocessor.prompt.preamble import strip_preamble
from services.tokenization.segments import common_prefix

SHOWN = 160
"""Characters of a difference that are shown, on each side."""
BEFORE = 40
"""Of them, characters before the first difference."""
SETTINGS = ("thinking", "template_kwargs", "format", "verbosity")
"""Fields of a request that templates may read."""


def changes_of(before: Conversation, answer: Sequence[Part], now: Conversation) -> list[Change]:
    """The changes from a conversation with its answer to the next one. An extended history is no change; billing
    headers, which the preprocessor removes, are left out where there is another change."""
    was, is_now = strip_preamble(before)[0], strip_preamble(now)[0]
    changes = [*_tools(was.tools, is_now.tools), *_system(was, is_now)]
    changes += _differing("settings", _settings(was), _settings(is_now))
    changes += _history(was.turns, answer, is_now.turns)
    return changes or _system(before, now)


def _differing(kind: ChangeKind, was: Mapping[str, str], now: Mapping[str, str]) -> list[Change]:
    """The texts that differ, by their names."""
    pairs = ((name, was.get(name, ""), now.get(name, "")) for name in {**was, **now})
    return [Change(kind, name, *_around(one, other)) for name, one, other in pairs if one != other]


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
    old, new = ({f"system text {at}": part.text for at, part in enumerate(one.system, 1)} for one in (was, now))
    changes = []
    for change in _differing("system", old, new):
        one, other = old.get(change.where, ""), new.get(change.where, "")
        varies = kind_of_change(one, other, len(common_prefix(one, other))) if one and other else ""
        changes.append(replace(change, varies=varies))
    return changes


def _settings(conversation: Conversation) -> dict[str, str]:
    return {f"the setting {name}": _text(getattr(conversation, name)) for name in SETTINGS}


def _history(was: Sequence[Turn], answer: Sequence[Part], now: Sequence[Turn]) -> list[Change]:
    changes: list[Change] = []
    if len(now) < len(was):
        # A client that edits a message sends the rest again; one that summarizes its history sends fewer.
        changes.append(Change("history", "the history", f"{len(was)} messages", f"{len(now)} messages"))
    for number, (one, other) in enumerate(zip(was, now, strict=False), 1):
        change = None if one is other else _message(number, one, other)
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


def _message(number: int, one: Turn, other: Turn) -> Change | None:
    where = f"message {number} ({one.role})"
    if one.role != other.role:
        return Change("history", where, _parts(one.parts)[:SHOWN], f"{other.role}: {_parts(other.parts)}"[:SHOWN])
    rest, other_rest = (_without_reasoning(turn.parts) for turn in (one, other))
    if rest == other_rest or (one.role == "assistant" and content_of(one.parts) == content_of(other.parts)):
        if _has_reasoning(one.parts) == _has_reasoning(other.parts):
            return None
        return Change("reasoning", where, _parts(one.parts)[:SHOWN], _parts(other.parts)[:SHOWN])
    return Change("message", where, *_around(_parts(rest), _parts(other_rest)))


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
            return "[result] " + "\n".join(one.text if isinstance(one, Text) else _text(one) for one in part.parts)
        case Media():
            return f"[{part.kind} {part.media_type}]"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _around(one: str, other: str) -> tuple[str, str]:
    """Both texts around their first difference."""
    at = len(common_prefix(one, other))
    start = max(0, at - BEFORE)
    cut: Callable[[str], str] = lambda text: ("…" if start else "") + text[start : start + SHOWN]  # noqa: E731
    return cut(one), cut(other)
