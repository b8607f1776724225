"""Errors of the Responses API: as an HTTP answer, and as the `error` of a response that failed (apis.md B.6, D.3)."""

import math
from typing import Any

from schemas.errors import ErrorInfo, ErrorKind
from services.frontend.dialects.base import ErrorReply
from services.frontend.dialects.shared_errors import openai_reply

FAILURE_CODES: dict[ErrorKind, str] = {
    ErrorKind.INVALID: "invalid_prompt",
    ErrorKind.CONTEXT_OVERFLOW: "context_length_exceeded",
    ErrorKind.UNAUTHORIZED: "invalid_prompt",
    ErrorKind.FORBIDDEN: "invalid_prompt",
    ErrorKind.NOT_FOUND: "invalid_prompt",
    ErrorKind.TOO_LARGE: "invalid_prompt",
    ErrorKind.RATE_LIMITED: "rate_limit_exceeded",
    # Not `server_is_overloaded`: Codex gives up at that one. What broke off in mid-turn is worth another try.
    ErrorKind.OVERLOADED: "server_error",
    ErrorKind.UNAVAILABLE: "server_error",
    ErrorKind.TIMED_OUT: "server_error",
    ErrorKind.ENGINE: "server_error",
}
"""The code of a response that failed in mid-stream, by what Codex does on it."""

_MODEL = "model: "


def error_reply(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
    """The error as a response of its own; an unknown model in the native words."""
    if info.kind is ErrorKind.NOT_FOUND and info.message.startswith(_MODEL):
        name = info.message.removeprefix(_MODEL)
        text = f"The model `{name}` does not exist or you do not have access to it."
        info = ErrorInfo(info.kind, text, "model", "model_not_found")
    return openai_reply(info, request_id, status)


def failure(info: ErrorInfo) -> dict[str, Any]:
    """The `error` member of a failed response."""
    message = info.message
    if info.kind is ErrorKind.RATE_LIMITED and info.retry_after_s is not None and "try again in" not in message:
        # Codex reads the time to wait from the text.
        message = f"{message} Please try again in {math.ceil(info.retry_after_s)}s."
    return {"code": FAILURE_CODES[info.kind], "message": message}
