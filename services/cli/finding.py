"""One line of the doctor's report."""

from typing import Literal, TypeAlias

from msgspec import Struct

Status: TypeAlias = Literal["ok", "note", "warn", "fail"]
"""`note`: worth knowing; `warn`: will hurt somebody; `fail`: does not work."""


class Finding(Struct, frozen=True):
    """What was looked at, and what was found."""

    status: Status
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.about:<13} {self.text}"
