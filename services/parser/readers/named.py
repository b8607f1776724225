"""Calls that are a name and nothing else."""

from dataclasses import dataclass

from services.parser.tape import Reading
from services.parser.turn import Opener, Turn


@dataclass(frozen=True)
class Named:
    """A call without arguments (`whole`), or one that broke off after its name and never completes."""

    whole: bool

    def read(self, turn: Turn, opener: Opener) -> Reading[str | None]:
        """Writes the block."""
        turn.end_prose()
        turn.blocks.open("tool_use", turn.tools.named(opener.name or ""))
        if self.whole:
            turn.blocks.say("{}")
        turn.blocks.close(self.whole)
        return None
        yield
