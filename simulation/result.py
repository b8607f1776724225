"""The result of one seed."""

from dataclasses import dataclass, field

Line = tuple[float, str, str]
"""One line of a trace: (virtual time, process, text)."""


@dataclass
class Result:
    """The result of one seed."""

    seed: int
    turns: int = 0
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    digest: str = ""
    """Hash of the whole trace."""
    faults: list[str] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    """How many requests ended in which way."""
    reached: dict[str, int] = field(default_factory=dict)
    """How often the rare branches were reached."""
    trace: list[Line] = field(default_factory=list)
