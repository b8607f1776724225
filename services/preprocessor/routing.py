"""Who decodes and who parses a turn. Pure; the KV overlap of a prompt will weigh in here.

Loads come with beats, once a second; what this preprocessor itself sent out since is added, so that a burst between two
beats is spread.
"""

from collections import Counter
from collections.abc import Collection

from schemas.control import Beat
from schemas.errors import Overloaded, Unavailable

RETRY_AFTER_S = 1.0


class Router:
    """Chooses among beats."""

    def __init__(self) -> None:
        self._since_beat: Counter[str] = Counter()

    def heard(self, beat: Beat) -> None:
        """A beat tells the true load: what was added to the last one is in it."""
        self._since_beat.pop(beat.id, None)

    def left(self, beat: Beat) -> None:
        """A process is gone, and with it what was sent to it."""
        self._since_beat.pop(beat.id, None)

    def workers(self, beats: list[Beat], *, avoid: Collection[str], late: Collection[str]) -> list[str]:
        """The workers to ask, best first. Those to avoid, and those whose beat is late, come last.

        Raises:
            Unavailable: there is none.
            Overloaded: all are at their limit.
        """
        if not beats:
            raise Unavailable("no worker serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        free = [beat for beat in beats if not self._saturated(beat)]
        if not free:
            raise Overloaded("every worker of this model is at its limit", retry_after_s=RETRY_AFTER_S)
        free.sort(key=lambda beat: (beat.id in avoid, beat.id in late, self._busy(beat)))
        return [beat.id for beat in free]

    def parser(self, beats: list[Beat], *, late: Collection[str]) -> str:
        """The shard with the fewest turns; one whose beat is late comes last.

        Raises:
            Unavailable: there is none.
        """
        if not beats:
            raise Unavailable("no parser serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        return min(beats, key=lambda beat: (beat.id in late, beat.load.running + self._since_beat[beat.id])).id

    def assigned(self, process: str) -> None:
        """A turn was given to this worker or shard."""
        self._since_beat[process] += 1

    def returned(self, process: str) -> None:
        """It was not taken."""
        if self._since_beat[process] > 0:
            self._since_beat[process] -= 1

    def _turns(self, beat: Beat) -> int:
        return beat.load.running + beat.load.waiting + self._since_beat[beat.id]

    def _busy(self, beat: Beat) -> float:
        return self._turns(beat) / max(beat.load.slots, 1)

    def _saturated(self, beat: Beat) -> bool:
        load = beat.load
        return load.slots > 0 and self._turns(beat) >= load.slots + load.queue_limit
