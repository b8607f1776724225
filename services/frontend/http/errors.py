"""Defines the HTTP form of errors. Each API has one, and so have paths outside all APIs."""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from schemas.errors import RETRY_AFTER_S, ErrorInfo


class ErrorReply(Struct, frozen=True):
    """The HTTP response for an error."""

    status: int
    headers: dict[str, str]
    body: bytes


def json_error(info: ErrorInfo, status: int, document: object) -> ErrorReply:
    """Makes the response with a JSON document, and with the time to wait in a header."""
    headers = {"content-type": "application/json"}
    wait_s = info.retry_after_s
    if wait_s is None and status in (503, 529):
        wait_s = RETRY_AFTER_S
    if wait_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(wait_s)))
    return ErrorReply(status, headers, msgspec.json.encode(document))


ErrorShape: TypeAlias = Callable[[ErrorInfo, str, int | None], ErrorReply]
"""Makes the response for an error. Arguments: the error, the request id, a status that overrides
the error's own."""


FormatName: TypeAlias = Literal["anthropic", "openai", "shared"]


class ErrorFormat(Struct, frozen=True):
    """The form of errors that the clients of an API read."""

    name: FormatName
    schema: type
    """Type of the body."""
    statuses: frozenset[int]
    reply: ErrorShape
    unknown_path: str = "Not found"
    """The message for a path that does not exist, with places for `{method}` and `{path}`."""
