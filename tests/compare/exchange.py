"""Requests and answers of a recording."""

import json
from dataclasses import dataclass
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
        return is_stream(self.headers)

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


def is_stream(headers: list[tuple[str, str]]) -> bool:
    """Whether an answer with these headers is a stream of events."""
    return any(
        name.lower() == "content-type" and "event-stream" in value for name, value in headers
    )
