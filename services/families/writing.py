"""Writes turns in a family's format: for prompts that force a call, for the demo model and for
tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json import dumps
from typing import Any, Final, TypeAlias

from services.families.tool_types import json_type

WriteArguments: TypeAlias = Callable[[Mapping[str, Any]], str]

NAME: Final = "{name}"
ARGUMENTS: Final = "{arguments}"


def as_json(arguments: Mapping[str, Any]) -> str:
    """Writes arguments as one JSON object."""
    return dumps(arguments, ensure_ascii=False)


def as_text(value: Any) -> str:
    """Writes a string bare, any other value as JSON."""
    return value if isinstance(value, str) else dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Tags:
    """One tag per argument: `template` has `{key}`, `{value}` and optionally `{string}` (whether
    the value is one)."""

    template: str

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Writes all arguments, in order."""
        written: list[str] = []
        for key, value in arguments.items():
            before, after = self.around(key, json_type(value))
            written.append(before + as_text(value) + after)
        return "".join(written)

    def around(self, key: str, kind: str) -> tuple[str, str]:
        """The text before and after a value of the JSON type `kind`."""
        before, _, after = self.template.partition("{value}")
        is_string = "true" if kind == "string" else "false"
        before = before.replace("{key}", key).replace("{string}", is_string)
        return before.replace("{type}", kind.replace("integer", "number")), after

    @property
    def states_types(self) -> bool:
        """Whether a tag states the type of its value."""
        return "{string}" in self.template or "{type}" in self.template


@dataclass(frozen=True)
class Style:
    """The written form of a turn: `call` has `{name}` and `{arguments}`, `reasoning` and `text`
    have `{text}`; `joint` goes between any two of them. `counter` is the part of `call` that counts
    calls: a digit with enough text around it to be found. A `Family` without `reasoning` writes
    `{text}` between its tags."""

    call: str = ""
    arguments: WriteArguments = as_json
    reasoning: str = ""
    text: str = "{text}"
    joint: str = ""
    counter: str = ""

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Writes a complete call."""
        before, _, after = self.call.partition(ARGUMENTS)
        return before.replace(NAME, name) + self.arguments(arguments) + after.replace(NAME, name)

    def write_reasoning(self, text: str) -> str:
        """Writes reasoning with its markers."""
        return _with_text(self.reasoning, text)

    def write_text(self, text: str) -> str:
        """Writes text, with markers if the format has them."""
        return _with_text(self.text, text)

    def call_prefix(self, name: str | None) -> str:
        """The text that opens a forced call of `name`, or of any tool: `open_parser`'s `prefix`."""
        opening = self.call.partition(ARGUMENTS)[0]
        if name is None:
            return opening.partition(NAME)[0]
        return opening.replace(NAME, name)


def _with_text(form: str, text: str) -> str:
    before, _, after = form.partition("{text}")
    return before + text + after
