"""The `error` of a response that failed (apis.md B.6, D.3). What is refused with a status has OpenAI's common shape."""

import math
from typing import Any

import msgspec

from schemas.errors import ErrorInfo, ErrorKind
from services.frontend.dialects.shared_errors import openai_error

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


_PARAMS = {"messages": "input", "format": "text.format"}
"""Fields that the pipeline knows by their names in other APIs."""


def own_words(info: ErrorInfo) -> ErrorInfo:
    """The error with the name that its field has in this API."""
    own = _PARAMS.get(info.param or "")
    return msgspec.structs.replace(info, param=own) if own else info


def failure(info: ErrorInfo) -> dict[str, Any]:
    """The `error` member of a failed response."""
    message = openai_error(info)["message"]
    if info.kind is ErrorKind.RATE_LIMITED and info.retry_after_s is not None and "try again in" not in message:
        # Codex reads the time to wait from the text.
        message = f"{message} Please try again in {math.ceil(info.retry_after_s)}s."
    return {"code": FAILURE_CODES[info.kind], "message": message}
