"""The one tree of errors. Each API renders a kind in its own shape; nobody else writes error bodies.

TurnwireError
├── Invalid            the request is not well formed, or asks for what the model cannot do
│   └── ContextOverflow   the prompt and the answer do not fit the context window
├── Unauthorized       no key, or a wrong one
├── Forbidden          the key may not use this
├── NotFound           no such model, path or object
├── TooLarge           the body is over the limit
├── RateLimited        over the key's own limit; try again later
├── Overloaded         every worker is busy; try again later
├── Unavailable        nothing serves this model at the moment
├── TimedOut           it took longer than allowed
└── EngineFailed       the engine, or a process on the way, failed
"""

from enum import StrEnum
from typing import Any, ClassVar

from msgspec import Struct


class ErrorKind(StrEnum):
    """What went wrong, as far as a client can act on it."""

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
"""`ErrorInfo.code` of a failure that another worker may make good."""
STREAM_GONE = "stream_gone"
"""`ErrorInfo.code` of a worker's answer to a shard that asks for a stream which it has no more: the turn goes on
elsewhere, if anybody still waits for it."""


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
        self.info = ErrorInfo(self.kind, message, param, code, details, retry_after_s)


class Invalid(TurnwireError):
    """The request is not well formed, or asks for what the model or engine cannot do."""

    kind = ErrorKind.INVALID


class ContextOverflow(Invalid):
    """The prompt does not fit. The wording is what makes agent clients compact their history."""

    kind = ErrorKind.CONTEXT_OVERFLOW


class Unauthorized(TurnwireError):
    """No key, or a wrong one."""

    kind = ErrorKind.UNAUTHORIZED


class Forbidden(TurnwireError):
    """The key is known and may not do this."""

    kind = ErrorKind.FORBIDDEN


class NotFound(TurnwireError):
    """No such model, path or object."""

    kind = ErrorKind.NOT_FOUND


class TooLarge(TurnwireError):
    """The body, or the message that it makes on the bus, is over the limit."""

    kind = ErrorKind.TOO_LARGE


class RateLimited(TurnwireError):
    """Over the key's own limit."""

    kind = ErrorKind.RATE_LIMITED


class Overloaded(TurnwireError):
    """Every worker of the model is at its limit."""

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


def raised(info: ErrorInfo) -> TurnwireError:
    """The exception for an error that came over the bus."""
    for cls in _classes(TurnwireError):
        if cls.kind == info.kind and cls is not TurnwireError:
            break
    else:  # pragma: no cover - every kind has a class; test_errors checks it
        cls = EngineFailed
    error = cls(info.message)
    error.info = info
    return error


def _classes(root: type[TurnwireError]) -> list[type[TurnwireError]]:
    return [root, *(c for sub in root.__subclasses__() for c in _classes(sub))]
