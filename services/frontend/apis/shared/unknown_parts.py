"""Leaves out content parts of types that an API lacks.

A client that is newer than the server sends such a part again with every request of its session: a
refusal would end the session. All else keeps its spelling and its index. A user's last message
with unknown parts only is refused, as by the vendors: the answer would be to an empty message.
"""

from collections.abc import Collection
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

T = TypeVar("T")
_EMPTY = Raw(b'{"type":"text","text":""}')


class _Typed(Struct):
    type: str


class UnknownParts:
    """Replaces unknown parts by empty text, which no prompt contains, and collects their types."""

    def __init__(self) -> None:
        self.types: list[str] = []

    def replace(self, parts: Raw, known: Collection[str]) -> Raw:
        """The list of parts with empty text for each part of a type that is not `known`; any other
        value unchanged."""
        listed = elements(parts)
        if not listed:
            return parts
        return Raw(msgspec.json.encode([self._replace_part(part, known) for part in listed]))

    def replace_in(self, holder: Raw, name: str, known: Collection[str]) -> Raw:
        """The object with `replace` applied to a member, if it has one of this name."""
        parts = members(holder).get(name)
        if parts is None:
            return holder
        return with_member(holder, name, self.replace(parts, known))

    def _replace_part(self, part: Raw, known: Collection[str]) -> Raw:
        kind = part_type(part)
        if kind is None or kind in known:
            return part
        self.types.append(kind)
        return _EMPTY


def is_unknown_question(message: Raw, known: Collection[str]) -> bool:
    """Whether a message is the user's, and each of its parts is of a type that is not `known`."""
    fields = members(message)
    parts = elements(fields.get("content"))
    if not parts or bytes(fields.get("role", b"")) != b'"user"':
        return False
    return all(kind is not None and kind not in known for kind in map(part_type, parts))


def part_type(part: Raw) -> str | None:
    """The `type` of a part; None for a value without one."""
    typed = _decoded(part, _Typed)
    return None if typed is None else typed.type


def members(json: bytes | Raw) -> dict[str, Raw]:
    """The members of an object; empty for any other value."""
    return _decoded(json, dict[str, Raw]) or {}


def elements(json: Raw | None) -> list[Raw]:
    """The elements of a list; empty for any other value."""
    if json is None:
        return []
    return _decoded(json, list[Raw]) or []


def with_member(holder: bytes | Raw, name: str, value: Raw | list[Raw]) -> Raw:
    """An object with another value of a member."""
    return Raw(msgspec.json.encode({**members(holder), name: value}))


def _decoded(json: bytes | Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(json, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None
