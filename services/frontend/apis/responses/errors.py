"""Formats errors of the Responses API: of requests, and the `error` of a failed response."""

import math

from schemas.errors import ErrorInfo, ErrorKind, Invalid, NotFound
from services.frontend.apis.shared.errors import (
    UnknownModelWording,
    openai_error,
    openai_format,
)

_FAILURE_CODES: dict[ErrorKind, str] = {
    ErrorKind.CONTEXT_OVERFLOW: "context_length_exceeded",
    ErrorKind.RATE_LIMITED: "rate_limit_exceeded",
    # Not `server_is_overloaded`, on which Codex gives up: a turn that broke off deserves a retry.
    ErrorKind.OVERLOADED: "server_error",
    ErrorKind.UNAVAILABLE: "server_error",
    ErrorKind.TIMED_OUT: "server_error",
    ErrorKind.ENGINE: "server_error",
}
"""Codes of a response that failed in mid-stream, chosen for Codex' reaction to them; otherwise
`invalid_prompt`."""
_UNKNOWN_MODEL = UnknownModelWording(400, "The requested model '{name}' does not exist.")
FORMAT = openai_format(
    {
        "messages": "input",
        "prompt": "input",
        "format": "text.format",
        "max_tokens": "max_output_tokens",
        "stop_sequences": "stop",
        "logprobs": "include",
    },
    _UNKNOWN_MODEL,
)


def failure(info: ErrorInfo) -> dict[str, str]:
    """The `error` member of a failed response."""
    message = openai_error(info, unknown_model=_UNKNOWN_MODEL).message
    if (
        info.kind is ErrorKind.RATE_LIMITED
        and info.retry_after_s is not None
        and "try again in" not in message
    ):
        # Codex reads the time to wait from the text.
        message = f"{message} Please try again in {math.ceil(info.retry_after_s)}s."
    return {"code": _FAILURE_CODES.get(info.kind, "invalid_prompt"), "message": message}


def not_found(kind: str, id: str, param: str) -> NotFound:
    """The error for an object that is not stored."""
    return NotFound(f"{kind} with id '{id}' not found.", param=param)


def previous_not_found(name: str) -> Invalid:
    """The error for a `previous_response_id` that is not stored; on its code Codex sends the whole
    conversation."""
    return Invalid(
        f"Previous response with id '{name}' not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )
