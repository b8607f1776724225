"""The parent of the spans that a process records of a turn, with or without tracing."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value | None]
"""None: the attribute is left out."""


class Scope:
    """A parent of spans. This one records none, because the turn is not traced; a `TracedScope`
    does."""

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
        """Records a child that is over, with Unix times in nanoseconds. `error`: the kind of the
        error with which it ended; `events`: (name, time, details)."""


NO_SCOPE: Final = Scope()
