"""Several calls in one message, each behind a marker of its own."""

from dataclasses import dataclass
from functools import cached_property

from services.parser.markup import Call
from services.parser.shapes import Markers, Shape
from services.parser.tape import Reading
from services.parser.turn import Opener, Turn


@dataclass(frozen=True)
class Section:
    """All calls up to one of `ends`, which stays where it is; what stands between them is noise."""

    calls: tuple[Call, ...]
    ends: tuple[Shape, ...]

    def read(self, turn: Turn, opener: Opener) -> Reading[str | None]:
        """Reads the calls."""
        while True:
            found = yield from turn.tape.seek(self._markers)
            if found is None or found.means is None:
                return None
            turn.tape.position = found.match.end()
            yield from found.means.read(turn, found.match)

    @cached_property
    def _markers(self) -> Markers[Call | None]:
        ends: list[tuple[Shape, Call | None]] = [(shape, None) for shape in self.ends]
        return Markers([*((call.shape, call) for call in self.calls), *ends])
