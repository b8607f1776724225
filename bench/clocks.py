"""Reads when the last tokens of a call left the engine: the start of the dispatch lag.

A script player writes these times in the monotonic clock, which all processes of a machine share.
"""

from pathlib import Path
from typing import Literal, TypeAlias

Mark: TypeAlias = Literal["body", "close"]
"""Which token: the last one of the call's inner form (`</function>`), after which nothing can
change the call, or the call's closer (`</tool_call>`)."""

MARKS: tuple[Mark, ...] = ("body", "close")


class Marks:
    """The file in which a script player writes `ID NAME NS` just before the next token leaves the
    engine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def left_at(self, mark: Mark, play_id: str) -> int | None:
        """Returns when that token of a play left, in ns; None: unknown. `play_id`: the directive's
        `id`."""
        found = None
        for line in self._path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) == 3 and words[0] == play_id and words[1] == mark:
                found = int(words[2])
        return found
