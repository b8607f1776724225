"""The regions of a description: fields with their delimiters as shapes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final, Literal, TypeAlias

from services.families.description.delimiters import delimiter
from services.families.description.fields import (
    InvalidResponseTemplate,
    TemplateField,
    refusal,
)

_REASONING: Final = frozenset({"reasoning_content", "reasoning", "thinking", "thought", "thoughts"})
_CALLS: Final = frozenset({"tool_calls", "tool_call", "function_calls", "function_call"})
_PLACEHOLDER: Final = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_GROUP: Final = re.compile(r"\(\?P<(\w+)>")
_LOOKS_AHEAD: Final = re.compile(r"\(\?=.*\)", re.DOTALL)
_CALL_OF_CONTENT: Final = {"name": "{content.name}", "arguments": "{content.arguments}"}

Pairs: TypeAlias = list[tuple[str, str]]
"""Openers with their closers."""
RegionKind: TypeAlias = Literal["reasoning", "calls", "text"]


class Region:
    """A field with its delimiters as shapes. Raises InvalidResponseTemplate."""

    def __init__(self, name: str, field: TemplateField) -> None:
        self.key_path = f"fields.{name}"
        self.field = field
        self.kind = _kind(name)
        self._check_field()
        self.name_path = self._path("name")
        """The parts of the placeholder for a call's name; empty where the transform has none."""
        self.arguments_path = self._path("arguments")
        """The parts of the placeholder for a call's arguments; empty where the transform has
        none."""
        self.looks_ahead = _LOOKS_AHEAD.fullmatch(field.open_pattern or "") is not None
        self.opens = self._openers()
        """None: the field is all text that no other field has."""
        closer = delimiter(field.close, field.close_pattern, f"{self.key_path}.close")
        self.closes = closer or []
        if self.opens == [] and not self.looks_ahead:
            raise self.refusal("open", "may be empty")

    def refusal(self, key: str, problem: str) -> InvalidResponseTemplate:
        """The error for a key of the field."""
        return refusal(f"{self.key_path}.{key}", problem)

    def _check_field(self) -> None:
        field = self.field
        if field.join is not None and not field.repeats:
            raise self.refusal("join", "needs repeats")
        if field.transform_each and field.transform is None:
            raise self.refusal("transform_each", "needs a transform")
        groups = _GROUP.findall(f"{field.open_pattern or ''}{field.close_pattern or ''}")
        self._check_transform(field.transform, {"content", *groups})
        if groups and field.transform is None:
            problem = f"is missing, so that the group {groups[0]!r} has no use"
            raise self.refusal("transform", problem)

    def _check_transform(self, transform: Any, roots: set[str]) -> None:
        if isinstance(transform, dict):
            transform = list(transform.values())
        if isinstance(transform, list):
            for part in transform:
                self._check_transform(part, roots)
        elif isinstance(transform, str):
            self._check_placeholder(transform, roots)

    def _check_placeholder(self, text: str, roots: set[str]) -> None:
        placeholder = _PLACEHOLDER.search(text)
        if placeholder is None:
            return
        if placeholder[0] != text:
            raise self.refusal("transform", f"mixes {placeholder[0]} with text")
        root = placeholder[1].partition(".")[0]
        if not self.field.transform_each and root not in roots:
            raise self.refusal("transform", f"has {placeholder[0]}, which nothing captures")

    def _path(self, key: str) -> list[str]:
        """The parts of the placeholder for the name or the arguments of a call."""
        target = self.field.transform
        if target is None:
            target = "{content}"
        if isinstance(target, dict):
            target = target.get("function", target)
        if target == "{content}":
            target = _CALL_OF_CONTENT
        text = target.get(key) if isinstance(target, dict) else None
        if not isinstance(text, str):
            return []
        placeholder = _PLACEHOLDER.fullmatch(text)
        return [] if placeholder is None else placeholder[1].split(".")

    def _openers(self) -> list[str] | None:
        if self.looks_ahead:
            return []
        field = self.field
        return delimiter(field.open, field.open_pattern, f"{self.key_path}.open", self._holes())

    def _holes(self) -> Mapping[str, str]:
        """The holes of the groups in an opener."""
        if self.kind != "calls":
            return {}
        holes = {"id": "word", "call_id": "word"}
        if len(self.name_path) == 1:
            holes[self.name_path[0]] = "name"
        return holes

    def pairs(self) -> Pairs:
        """The delimiters around the field's text. Raises InvalidResponseTemplate."""
        opens = self.opens or []
        if opens and not self.closes:
            raise self.refusal("close", "is missing")
        if len(opens) == len(self.closes):
            return list(zip(opens, self.closes, strict=True))
        return list(product(opens, self.closes))

    def thoughts(self, anchor: Iterable[str]) -> Pairs:
        """The delimiters around reasoning. An expression that only looks ahead to the closer stands
        for reasoning that the prompt opens; then the anchor has the opener. Raises
        InvalidResponseTemplate."""
        if not self.looks_ahead:
            return self.pairs()
        for close in self.closes:
            opener = close.replace("/", "", 1)
            if opener != close and any(opener in header for header in anchor):
                return [(opener, close)]
        problem = "only looks ahead, and start_anchor has no tag that opens it"
        raise self.refusal("open_pattern", problem)

    @property
    def delimiters(self) -> Sequence[str]:
        """The openers and the closers."""
        return [*(self.opens or ()), *self.closes]


def _kind(name: str) -> RegionKind:
    """The kind of a field, by its name."""
    if name in _REASONING:
        return "reasoning"
    return "calls" if name in _CALLS else "text"
