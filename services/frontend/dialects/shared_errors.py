"""Errors of paths that no dialect has for itself: OpenAI's shape, and one that both families of clients read."""

from typing import Any

import msgspec

from schemas.errors import ErrorInfo, ErrorKind
from services.frontend.dialects.base import ErrorReply
from services.frontend.dialects.messages import errors as messages

OPENAI_KINDS: dict[ErrorKind, tuple[int, str, str | None]] = {
    ErrorKind.INVALID: (400, "invalid_request_error", None),
    ErrorKind.CONTEXT_OVERFLOW: (400, "invalid_request_error", "context_length_exceeded"),
    ErrorKind.UNAUTHORIZED: (401, "invalid_request_error", "invalid_api_key"),
    ErrorKind.FORBIDDEN: (403, "permission_error", None),
    ErrorKind.NOT_FOUND: (404, "invalid_request_error", None),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.OVERLOADED: (503, "server_error", "server_is_overloaded"),
    ErrorKind.UNAVAILABLE: (503, "server_error", None),
    ErrorKind.TIMED_OUT: (504, "server_error", None),
    ErrorKind.ENGINE: (500, "server_error", None),
}
"""Status, type and code of every kind of error in both OpenAI APIs."""


def openai_reply(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
    """The error as both OpenAI APIs have it."""
    own_status, kind, code = OPENAI_KINDS[info.kind]
    error = {"message": info.message, "type": kind, "param": info.param, "code": info.code or code}
    return _reply(info, status or own_status, {"error": error})


def union_reply(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
    """The error for clients of any API: Anthropic's shape with the members that OpenAI's clients look for."""
    own_status, kind = messages.KINDS[info.kind]
    code = info.code or OPENAI_KINDS[info.kind][2]
    error = {"type": kind, "message": info.message, "param": info.param, "code": code}
    return _reply(info, status or own_status, {"type": "error", "error": error, "request_id": request_id})


def _reply(info: ErrorInfo, status: int, document: dict[str, Any]) -> ErrorReply:
    headers = {"content-type": "application/json"}
    if info.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(info.retry_after_s)))
    return ErrorReply(status, headers, msgspec.json.encode(document))
