"""Writes turns in a family's format: for prompts that force a call, for the demo model and for tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json import dumps
from typing import Any, Final

from services.families.tool_types import json_type

NAME: Final = "{name}"
ARGUMENTS: Final = "{arguments}"


def as_json(arguments: Mapping[str, Any]) -> str:
    """One JSON object."""
    return dumps(arguments, ensure_ascii=False)


def as_text(value: Any) -> str:
    """Strings bare, everything else as JSON."""
    return value if isinstance(value, str) else dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Tags:
    """One tag per argument: `template` with `{key}` and `{value}` (and `{string}`: whether it is one)."""

    template: str

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """All arguments, in order."""
        tags = ((self.around(key, json_type(value)), value) for key, value in arguments.items())
        return "".join(front + as_text(value) + back for (front, back), value in tags)

    def around(self, key: str, kind: str) -> tuple[str, str]:
        """The text before and behind a value of the JSON type `kind`."""
        front, _, back = self.template.partition("{value}")
        front = front.replace("{key}", key).replace("{string}", "true" if kind == "string" else "false")
        return front.replace("{type}", kind.replace("integer", "number")), back

    @property
    def states_types(self) -> bool:
        """A tag has the type of its value."""
        return "{string}" in self.template or "{type}" in self.template


@dataclass(frozen=True)
class Style:
    """The written form: `call` with `{name}` and `{arguments}`, `reasoning` and `text` with `{text}`; `joint` is
    between any two of them. `counter` is what in `call` counts calls: a digit, and enough around it to find it. Without
    `reasoning` a `Family` writes `{text}` between its tags."""

    call: str = ""
    arguments: Callable[[Mapping[str, Any]], str] = as_json
    reasoning: str = ""
    text: str = "{text}"
    joint: str = ""
    counter: str = ""

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """One call, whole."""
        front, _, back = self.call.partition(ARGUMENTS)
        return front.replace(NAME, name) + self.arguments(arguments) + back.replace(NAME, name)

    def write_reasoning(self, text: str) -> str:
        """Reasoning with its markers."""
        front, _, back = self.reasoning.partition("{text}")
        return front + text + back

    def write_text(self, text: str) -> str:
        """Text with its markers, where it has any."""
        front, _, back = self.text.partition("{text}")
        return front + text + back

    def call_prefix(self, name: str | None) -> str:
        """The text that opens a forced call of `name`, or of any tool: `open_parser`'s `prefix`."""
        front = self.call.partition(ARGUMENTS)[0]
        return front.partition(NAME)[0] if name is None else front.replace(NAME, name)
