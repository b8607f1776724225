"""Stores the result of a suite in a file after every part, so that an interrupted run can
continue."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct, field

from bench.report import Machine
from bench.rows import Row, medians


class SideFacts(Struct):
    """One side of the comparison."""

    name: str
    described: str
    start_s: list[float] = field(default_factory=list)
    """Seconds from the command to the first request that can be served, for each start."""


class Entry(Struct, frozen=True):
    """One part, measured once on one side."""

    side: str
    repeat: int
    part: str
    took_s: float
    rows: list[Row]
    problem: str = ""
    """Why it could not be measured."""


class Record(Struct):
    """Everything that a suite has measured so far."""

    started: str
    label: str
    machine: Machine
    repeat: int
    sizes: dict[str, object]
    sides: list[SideFacts]
    entries: list[Entry] = field(default_factory=list)
    finished: str = ""

    def side(self, name: str) -> SideFacts:
        """The facts of a side. Raises KeyError."""
        for one in self.sides:
            if one.name == name:
                return one
        raise KeyError(name)

    def has(self, side: str, repeat: int, part: str) -> bool:
        """Returns whether the part was measured on that side without a problem."""
        return any(
            (e.side, e.repeat, e.part) == (side, repeat, part) and not e.problem
            for e in self.entries
        )

    def put(self, entry: Entry) -> None:
        """Adds an entry, or replaces the one of the same part."""
        same = (entry.side, entry.repeat, entry.part)
        self.entries = [e for e in self.entries if (e.side, e.repeat, e.part) != same] + [entry]

    def rows(self, side: str) -> list[Row]:
        """One row for each case of a side: the medians over its repeats."""
        return medians([row for entry in self.entries if entry.side == side for row in entry.rows])

    @property
    def disturbed(self) -> list[float]:
        """For each case that took a second: how many cores other work kept busy meanwhile."""
        return [row.disturbed for entry in self.entries for row in entry.rows if row.wall_s > 1]

    @property
    def failed(self) -> list[str]:
        """Returns failures in words; of our own side only, because a peer may refuse unsupported
        fields."""
        problems = [f"{e.side}, {e.part}: {e.problem}" for e in self.entries if e.problem]
        ours = (e.rows for e in self.entries if e.side == self.sides[0].name)
        return problems + [
            f"{row.case.scenario} {row.case.api} {row.case.prompt}: {next(iter(row.errors))}"
            for rows in ours
            for row in rows
            if row.failed
        ]


def save(record: Record, path: Path) -> None:
    """Writes the record; readers see the complete file or the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(record) + b"\n")
    os.replace(new, path)


def load(path: Path) -> Record:
    """Reads what `save` wrote. Raises OSError, msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Record)
