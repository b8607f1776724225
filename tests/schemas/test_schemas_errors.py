"""Each kind of error has its exception."""

from schemas.errors import (
    INTERNAL,
    OUT_OF_MEMORY,
    ErrorInfo,
    ErrorKind,
    TurnwireError,
    raised,
    unexpected,
)
from tests.kit.every import for_each


@for_each(list(ErrorKind))
def test_every_kind_of_error_has_its_exception(kind: ErrorKind) -> None:
    info = ErrorInfo(kind, "why", param="messages.0", retry_after_s=1.5)
    error = raised(info)
    assert isinstance(error, TurnwireError)
    assert error.kind == kind
    assert error.info == info
    assert str(error) == "why"


def test_unexpected_error_names_a_lack_of_memory() -> None:
    assert unexpected(MemoryError()) is OUT_OF_MEMORY
    assert unexpected(KeyError("x")) is INTERNAL
