"""Errors in the shape of the Messages API (apis.md A.7)."""

import math
from typing import Any

import msgspec

from schemas.errors import ErrorInfo, ErrorKind
from services.frontend.dialects.base import ErrorReply

KINDS: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.INVALID: (400, "invalid_request_error"),
    ErrorKind.CONTEXT_OVERFLOW: (400, "invalid_request_error"),
    ErrorKind.UNAUTHORIZED: (401, "authentication_error"),
    ErrorKind.FORBIDDEN: (403, "permission_error"),
    ErrorKind.NOT_FOUND: (404, "not_found_error"),
    ErrorKind.TOO_LARGE: (413, "request_too_large"),
    ErrorKind.RATE_LIMITED: (429, "rate_limit_error"),
    ErrorKind.OVERLOADED: (529, "overloaded_error"),
    # Not 529: Claude Code gives up after three of those in a row, but tries ten times on any other 5xx, which is
    # the time that a worker needs to load its model.
    ErrorKind.UNAVAILABLE: (503, "overloaded_error"),
    ErrorKind.TIMED_OUT: (504, "timeout_error"),
    ErrorKind.ENGINE: (500, "api_error"),
}
"""Status and type of every kind of error."""


def error_reply(info: ErrorInfo, request_id: str, status: int | None = None) -> ErrorReply:
    """The error as a response of its own."""
    own_status, _ = KINDS[info.kind]
    headers = {"content-type": "application/json"}
    if info.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(info.retry_after_s)))
    return ErrorReply(status or own_status, headers, msgspec.json.encode(_document(info, request_id)))


def error_event(info: ErrorInfo, request_id: str) -> bytes:
    """The error as the last event of a stream."""
    return b"event: error\ndata: " + msgspec.json.encode(_document(info, request_id)) + b"\n\n"


def _document(info: ErrorInfo, request_id: str) -> dict[str, Any]:
    error: dict[str, Any] = {"type": KINDS[info.kind][1], "message": info.message}
    details = {**({"error_code": info.code} if info.code else {}), **(info.details or {})}
    if details:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}
