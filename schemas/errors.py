"""The tree of errors that end a request. Each API renders a kind in its own form; only the APIs
write error bodies."""

from enum import StrEnum
from typing import Any, ClassVar

from msgspec import Struct


class ErrorKind(StrEnum):
    """The kinds that a client can act on."""

    INVALID = "invalid"
    CONTEXT_OVERFLOW = "context_overflow"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    TIMED_OUT = "timed_out"
    ENGINE = "engine"


ENGINE_DIED = "engine_died"
"""`ErrorInfo.code` of a failure after which another worker can continue the turn."""
STREAM_GONE = "stream_gone"
"""`ErrorInfo.code` of a worker's reply to a shard that requests a stream which the worker no longer
has. Unless the turn has ended, it continues elsewhere."""
DEADLINE_PASSED = "deadline_passed"
"""`ErrorInfo.code` of a request that arrived after its deadline: it is not retried."""
MEDIA_MISSING = "media_missing"
"""`ErrorInfo.code` of a request with an image that is not stored any more: its frontend stores it
again."""
RETRY_AFTER_S = 1.0
"""`retry_after_s` of errors for which no process can take a request at the moment."""


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """An error on the wire between services; `message` may be shown to the client."""

    kind: ErrorKind
    message: str
    param: str | None = None
    """The field at fault, as a path in the client's request."""
    code: str | None = None
    details: dict[str, Any] | None = None
    retry_after_s: float | None = None


class TurnwireError(Exception):
    """Base of all errors that end a request. The client sees `message` in its API's own shape."""

    kind: ClassVar[ErrorKind] = ErrorKind.ENGINE

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.info = ErrorInfo(
            kind=self.kind,
            message=message,
            param=param,
            code=code,
            details=details,
            retry_after_s=retry_after_s,
        )


class Invalid(TurnwireError):
    """The request is malformed, or needs a feature that the model or engine lacks."""

    kind = ErrorKind.INVALID


class ContextOverflow(Invalid):
    """The prompt does not fit. Agent clients recognize the wording, and compact their history."""

    kind = ErrorKind.CONTEXT_OVERFLOW


class Refused(TurnwireError):
    """The sender may not make this request, or not now."""

    def __init__(
        self,
        message: str,
        reason: str = "other",
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """`reason`: one of a few words, for log and metrics. Clients do not get it."""
        super().__init__(message, param=param, code=code, retry_after_s=retry_after_s)
        self.reason = reason


class Unauthorized(Refused):
    """The key is missing or wrong."""

    kind = ErrorKind.UNAUTHORIZED


class Forbidden(Refused):
    """The key is known and may not do this."""

    kind = ErrorKind.FORBIDDEN


class NotFound(TurnwireError):
    """The model, path or object does not exist."""

    kind = ErrorKind.NOT_FOUND


class TooLarge(TurnwireError):
    """The body, or its message on the bus, is over the limit."""

    kind = ErrorKind.TOO_LARGE


class RateLimited(Refused):
    """The key is over its limit; the client may retry later."""

    kind = ErrorKind.RATE_LIMITED


class Overloaded(TurnwireError):
    """Every worker of the model is at its limit; the client may retry later."""

    kind = ErrorKind.OVERLOADED


class Unavailable(TurnwireError):
    """No process serves the model at the moment."""

    kind = ErrorKind.UNAVAILABLE


class TimedOut(TurnwireError):
    """No answer within the time allowed."""

    kind = ErrorKind.TIMED_OUT


class EngineFailed(TurnwireError):
    """The engine, or a process on the way, failed."""

    kind = ErrorKind.ENGINE


INTERNAL = ErrorInfo(ErrorKind.ENGINE, "Internal server error")
"""The error that a client gets for a bug."""
OUT_OF_MEMORY = ErrorInfo(
    ErrorKind.UNAVAILABLE,
    "The server is out of memory. Please try again.",
    retry_after_s=RETRY_AFTER_S,
)
"""One process is out of memory: the next attempt may reach another."""


def unexpected(error: Exception) -> ErrorInfo:
    """The error for an exception outside this tree: `INTERNAL` for a bug, or `OUT_OF_MEMORY`, which
    clients may retry."""
    return OUT_OF_MEMORY if isinstance(error, MemoryError) else INTERNAL


def as_turnwire_error(error: Exception, what: str) -> TurnwireError:
    """The error of a turn that an exception ends: the exception itself, or for one outside this
    tree `EngineFailed`. `what`: what has failed, for the client."""
    if isinstance(error, TurnwireError):
        return error
    return EngineFailed(f"{what}: {type(error).__name__}")


def raised(info: ErrorInfo) -> TurnwireError:
    """The exception for an error that came over the bus."""
    error = _CLASSES[info.kind](info.message)
    error.info = info
    return error


def _classes(root: type[TurnwireError]) -> list[type[TurnwireError]]:
    classes: list[type[TurnwireError]] = []
    for child in root.__subclasses__():
        classes += [child, *_classes(child)]
    return classes


_CLASSES = {cls.kind: cls for cls in _classes(TurnwireError)}
