"""A call that broke off after its name."""

from dataclasses import dataclass
from re import Match

from services.parser.tape import Reading
from services.parser.turn import Turn


@dataclass(frozen=True)
class Broken:
    """Reports the call as never complete. Nothing of it can be trusted but its name."""

    def read(self, turn: Turn, opener: Match[str], head: str) -> Reading[str | None]:
        """Writes the block."""
        turn.blocks.open("tool_use", opener["name"])
        turn.blocks.close(False)
        return None
        yield
