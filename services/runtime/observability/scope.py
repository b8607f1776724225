"""The spans that a process records of a turn, with or without tracing."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value | None]
"""None: the attribute is left out."""


class Scope:
    """A span as the parent of others. This one records nothing, because the turn is not traced; a
    `TracedScope` does. `event`, `set` and `end` are for a span that this process has opened. Times
    are Unix times in nanoseconds."""

    @property
    def carrier(self) -> dict[str, str]:
        """The trace context for messages to other processes, with this span as the parent."""
        return {}

    def record(
        self,
        name: str,
        start: int,
        end: int,
        attributes: Attributes,
        *,
        error: str | None = None,
        events: Sequence[tuple[str, int, Attributes]] = (),
    ) -> None:
        """Records a child that is over. `error`: the kind of the error with which it ended;
        `events`: (name, time, details)."""

    def open(
        self,
        name: str,
        start: int,
        attributes: Attributes,
        *,
        after: "Scope | None" = None,
        server: bool = False,
    ) -> "Scope":
        """Begins a child. `after`: the span that it continues and links to; `server`: whether it is
        a request that this process serves."""
        return NO_SCOPE

    def event(self, name: str, at: int, attributes: Attributes) -> None:
        """Adds an event."""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def end(self, at: int, *, error: str | None = None) -> None:
        """Ends the span, once. `error`: the kind of the error with which it ended."""


NO_SCOPE: Final = Scope()
