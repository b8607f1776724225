"""Formats one line of the doctor's report."""

from typing import Literal, TypeAlias

from msgspec import Struct

Status: TypeAlias = Literal["ok", "note", "warn", "fail"]
"""`note`: information; `warn`: works, with a problem; `fail`: does not work."""


class Finding(Struct, frozen=True):
    """The result of one check."""

    status: Status
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.about:<13} {self.text}"


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
