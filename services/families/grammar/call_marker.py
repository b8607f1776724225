"""The marker that opens a call, and the reader of the call."""

from collections.abc import Callable
from dataclasses import dataclass
from re import Match
from typing import Protocol

from services.families.grammar.scanner import Reader
from services.families.grammar.shapes import Shape
from services.families.grammar.turn_state import CallOpener, CallReading, TurnState, not_a_call


class CallReader(Protocol):
    """Reads a call, from after its opening marker to its end, and writes its block."""

    def read(self, turn: TurnState, opener: CallOpener) -> Reader[CallReading]:
        """Returns whether the scanner has passed a call, and the passed text if it has not."""


@dataclass(frozen=True)
class CallMarker:
    """The marker that opens a call, and its reader; `identify` splits the marker's `{id}` into name
    and call id."""

    shape: Shape
    body: CallReader
    identify: Callable[[str], tuple[str, str]] | None = None

    def read(self, turn: TurnState, match: Match[str]) -> Reader[CallReading]:
        """Reads the call after `match`, and returns the result of `CallReader.read`."""
        groups = match.groupdict()
        name = groups.get("name")
        call_id = groups.get("word")
        if self.identify is not None:
            name, call_id = self.identify(groups["id"])
            if not name:
                return not_a_call(match[0])
        opener = CallOpener(match[0], self.shape.head, name, call_id)
        return (yield from self.body.read(turn, opener))

    @property
    def marked(self) -> bool:
        """Whether its marker is more than brackets or a fence. Such a call may stand in a fence by
        its format."""
        return self.shape.head[0] != "`" and any(map(str.isalnum, self.shape.head))
