"""The `response_template` of a model as it is written, and the error for one that is refused."""

from typing import Any, Literal

import msgspec
from msgspec import Struct


class InvalidResponseTemplate(ValueError):
    """The description is invalid, or cannot be followed; the message names the key."""


class TemplateField(Struct, forbid_unknown_fields=True):
    """A field, as it is written."""

    open: str | list[str] | None = None
    open_pattern: str | None = None
    close: str | list[str] | None = None
    close_pattern: str | None = None
    content: Literal[
        "text", "int", "float", "bool", "json", "xml-inline", "kv-lines", "python-call-list"
    ] = "text"
    content_args: dict[str, Any] = {}
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: Any = None
    transform_each: bool = False


class ResponseTemplate(Struct, forbid_unknown_fields=True):
    """A description, as it is written."""

    fields: dict[str, Any]
    version: Literal[1] = 1
    defaults: dict[str, Any] = {}
    start_anchor: str | list[str] | None = None
    start_anchor_pattern: str | None = None


def converted(value: Any, kind: Any, key_path: str) -> Any:
    """Checks a part of a description. Raises InvalidResponseTemplate."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise refusal(key_path, f"is invalid: {error}") from None


def refusal(key_path: str, problem: str) -> InvalidResponseTemplate:
    """The error for the key at `key_path`."""
    return InvalidResponseTemplate(f"response_template: {key_path} {problem}")
