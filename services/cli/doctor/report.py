"""The doctor's report: findings, and how they are printed."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct
from rich.console import Console
from rich.text import Text

FindingStatus: TypeAlias = Literal["ok", "note", "warn", "fail"]
"""`note`: information; `warn`: works, with a problem; `fail`: does not work."""


_STYLES: dict[FindingStatus, str] = {
    "ok": "green",
    "note": "cyan",
    "warn": "yellow",
    "fail": "bold red",
}


class Finding(Struct, frozen=True):
    """The result of one check."""

    status: FindingStatus
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.about:<13} {self.text}"


def print_report(findings: Iterable[Finding]) -> int:
    """Prints each finding as soon as it is there. Returns 1 if a check has failed, else 0."""
    console = Console(highlight=False, soft_wrap=True)
    status = 0
    for finding in findings:
        status |= finding.status == "fail"
        line = Text(f"{finding.status:<5}", style=_STYLES[finding.status])
        console.print(line.append(str(finding), style="default"))
    return status


def first_line(error: BaseException) -> str:
    """The first line of an exception's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
