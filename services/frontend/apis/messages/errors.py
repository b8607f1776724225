"""Formats errors of the Messages API. Failed validations have the native API's wording, which
clients parse.

msgspec: "Object missing required field `text` - at `$.messages[0].content[1]`"
native:  "messages.0.content.1.text.text: Field required"
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from msgspec import UNSET, Struct, UnsetType

from schemas.errors import ErrorInfo, ErrorKind, Invalid
from services.frontend.apis.messages import wire
from services.frontend.apis.shared.decode import tags_of
from services.frontend.apis.shared.validation import (
    FailedValidation,
    MissingField,
    OutOfBounds,
    UnknownValue,
    WrongType,
    parse_message,
    values_along,
)
from services.frontend.http.errors import ErrorFormat, ErrorReply, json_error

KINDS: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.INVALID: (400, "invalid_request_error"),
    ErrorKind.CONTEXT_OVERFLOW: (400, "invalid_request_error"),
    ErrorKind.UNAUTHORIZED: (401, "authentication_error"),
    ErrorKind.FORBIDDEN: (403, "permission_error"),
    ErrorKind.NOT_FOUND: (404, "not_found_error"),
    ErrorKind.TOO_LARGE: (413, "request_too_large"),
    ErrorKind.RATE_LIMITED: (429, "rate_limit_error"),
    ErrorKind.OVERLOADED: (529, "overloaded_error"),
    # Not 529: Claude Code gives up after three of those in a row, but tries ten times on any other
    # 5xx, which is the time that a worker needs to load its model.
    ErrorKind.UNAVAILABLE: (503, "overloaded_error"),
    ErrorKind.TIMED_OUT: (504, "timeout_error"),
    ErrorKind.ENGINE: (500, "api_error"),
}
"""Status and type of every kind of error."""


class AnthropicErrorDetail(Struct):
    """The kind and the text of an error."""

    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class AnthropicError(Struct):
    """An error in the format of the Messages API."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


def error_reply(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
    """The error as an HTTP response."""
    return json_error(info, status or KINDS[info.kind][0], error_document(info, request_id))


def error_document(info: ErrorInfo, request_id: str) -> AnthropicError:
    """The error as a document, which may also be the last event of a stream."""
    details: dict[str, Any] = {}
    if info.code:
        details["error_code"] = info.code
    details |= info.details or {}
    _, kind = KINDS[info.kind]
    error = AnthropicErrorDetail(kind, info.message, details or UNSET)
    return AnthropicError("error", error, request_id)


STATUSES = frozenset({408, *(status for status, _ in KINDS.values())})
_BASE_URL = "The base URL of Anthropic's clients is the server's address, without /v1."
ANTHROPIC = ErrorFormat("anthropic", AnthropicError, STATUSES, error_reply, base_url=_BASE_URL)

_SIDES = {
    ">=": "greater than or equal to",
    ">": "greater than",
    "<=": "less than or equal to",
    "<": "less than",
}
_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "object": "dictionary",
    "array": "list",
}


_TAGS = {
    "thinking": get_args(wire.MessagesThinking.__annotations__["type"]),
    "tool_choice": get_args(wire.MessagesToolChoice.__annotations__["type"]),
    "system": ("text",),
    "content": tags_of(wire.Block),
    "format": ("json_schema",),
    "output_format": ("json_schema",),
    "cache_control": ("ephemeral",),
    "tool": tags_of(wire.ChangedTool),
    "tool_changes": ("tool_addition", "tool_removal"),
    "compaction": ("summarize",),
    "thread": tags_of(wire.Thread),
}
"""Values of `type`, by the field that has the object."""
_TAGS_IN = {
    ("image", "source"): tags_of(wire.ImageBlock.__annotations__["source"]),
    ("document", "source"): tags_of(wire.DocumentBlock.__annotations__["source"]),
}
"""Values of `type` that depend on the type of the surrounding object."""
_SHOWN_TYPES = ("source", "thinking", "tool_choice", "cache_control", "thread")
"""Fields with an object; the native API writes its type after the field's name."""
_CHOICES = {
    "role": ("user", "assistant", "system"),
    "effort": get_args(wire.Effort),
    "ttl": ("5m", "1h"),
    "clear_at": ("next_user_message", "never"),
    "display": ("summarized", "omitted", "updates"),
}


def explain(body: bytes, message: str) -> Invalid:
    """The native error for a failed validation of `body`."""
    failed = parse_message(message)
    steps = failed.steps
    match failed.reason:
        case MissingField("type"):
            place = _place(body, steps)
            return Invalid(f"{place}: Unable to extract tag using discriminator 'type'")
        case MissingField(name):
            steps = [*steps, name]
            return Invalid(f"{_place(body, steps)}: Field required", param=".".join(steps))
        case UnknownValue(tag) if steps[-1:] == ["type"]:
            return _unknown_tag(body, steps[:-1], tag)
        case WrongType() if not steps:
            return Invalid("The request body must be a JSON object.")
    return Invalid(f"{_place(body, steps)}: {_reason(failed)}", param=".".join(steps))


def _unknown_tag(body: bytes, steps: Sequence[str], tag: str) -> Invalid:
    """The error for the `type` of the object at `steps`."""
    field_path = ".".join(steps)
    text = (
        f"{field_path}: Input tag '{tag}' found using 'type' does not match any of the "
        "expected tags"
    )
    tags = ", ".join(f"'{choice}'" for choice in _tags_at(body, steps))
    if tags:
        text += f": {tags}"
    return Invalid(text, param=f"{field_path}.type")


def extra_input(name: str) -> Invalid:
    """The native error for an unknown field."""
    return Invalid(f"{name}: Extra inputs are not permitted", param=name)


def _reason(failed: FailedValidation) -> str:
    steps = failed.steps
    choices = _CHOICES.get(steps[-1] if steps else "")
    match failed.reason:
        case OutOfBounds(_, sign, limit):
            return f"Input should be {_SIDES[sign]} {limit}"
        case WrongType(expected, _) if choices is None or "str" not in expected:
            kinds = [_TYPES.get(kind, kind) for kind in expected]
            return f"Input should be a valid {' or '.join(kinds)}"
    if choices is not None:
        return input_should_be(choices)
    return failed.text


def input_should_be(choices: Sequence[str]) -> str:
    """The native reason for a value other than these."""
    quoted = [f"'{choice}'" for choice in choices]
    return f"Input should be {', '.join(quoted[:-1])} or {quoted[-1]}"


def _tags_at(body: bytes, steps: Sequence[str]) -> Sequence[str]:
    """The tags that the object at `steps` may have."""
    path = list(steps)
    while path and path[-1].isdigit():
        path.pop()
    if not path:
        return ()
    *above, field = path
    node = values_along(body, above)[-1]
    around = node.get("type") if isinstance(node, dict) else None
    if isinstance(around, str) and _TAGS_IN.get((around, field)):
        return _TAGS_IN[around, field]
    if _TAGS.get(field):
        return _TAGS[field]
    return ()


def _place(body: bytes, steps: Sequence[str]) -> str:
    """The path with the type of each block, as the native API writes it."""
    shown_steps: list[str] = []
    for step, node in zip(steps, values_along(body, steps[:-1])[1:], strict=False):
        shown_steps.append(step)
        shows_type = step in _SHOWN_TYPES or (step.isdigit() and shown_steps[0] != "system")
        if shows_type and isinstance(node, dict) and isinstance(node.get("type"), str):
            shown_steps.append(node["type"])
    return ".".join([*shown_steps, *steps[-1:]])
