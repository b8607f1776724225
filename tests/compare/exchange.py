"""Requests and answers of a recording, and the files that hold them."""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Request:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """One answer, and what agents read in it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return any(
            name.lower() == "content-type" and "event-stream" in value
            for name, value in self.headers
        )

    @property
    def document(self) -> Any:
        """The JSON document of a success; None if there is none."""
        try:
            return json.loads(self.body) if self.status == 200 and not self.is_stream else None
        except ValueError:
            return None

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of a stream's events."""
        lines = self.body.decode().split("\n") if self.is_stream else []
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@dataclass
class Exchange:
    """A request and its answer. Bodies are text in which bytes that are not UTF-8 are escaped."""

    id: str
    """Mark of the session and number of the request."""
    label: str
    method: str
    path: str
    request: str
    status: int
    headers: list[tuple[str, str]]
    answer: str


@dataclass
class BusTurn:
    """The messages of one turn, as they were sent; prompts as token ids in base64."""

    turn: list[str] = field(default_factory=list)
    generate: list[tuple[str, str]] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)


@dataclass
class BusSession:
    """The turns of one session, in the order in which the frontend sent them."""

    mark: str
    turns: list[BusTurn]


def save(path: Path, rows: Iterable[Any]) -> None:
    """Writes dataclasses, one a line."""
    with gzip.open(path, "wt", compresslevel=1, encoding="ascii") as file:
        for row in rows:
            file.write(json.dumps(asdict(row)) + "\n")


def load(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of such a file."""
    with gzip.open(path, "rt", encoding="ascii") as file:
        yield from map(json.loads, file)
