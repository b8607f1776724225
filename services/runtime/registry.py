"""Who is there: every process's last beat, and what to do when one comes, changes or goes.

Pure state; `process.Process` feeds it beats and the time. A process is gone when it says so, or when nothing was heard
of it for `dead_after_s`. One that was only named by others is missed in the same way: whoever relies on a process
hears of its end, whether or not it ever heard of its beginning.
"""

from collections.abc import Callable, Iterator

from schemas.control import Beat, Stage

Listener = Callable[[Beat], None]


class Registry:
    """The living processes by stage and id."""

    def __init__(self, dead_after_s: float) -> None:
        self._dead_after_s = dead_after_s
        self._peers: dict[tuple[Stage, str], tuple[Beat, float]] = {}
        self._expected: dict[tuple[Stage, str], float] = {}
        self._joined: list[Listener] = []
        self._beaten: list[Listener] = []
        self._left: list[Listener] = []

    def on_join(self, listener: Listener) -> None:
        """Called with the first beat of a process."""
        self._joined.append(listener)

    def on_beat(self, listener: Listener) -> None:
        """Called with every beat, the first included."""
        self._beaten.append(listener)

    def on_leave(self, listener: Listener) -> None:
        """Called with the last known beat of a process that is gone."""
        self._left.append(listener)

    def heard(self, beat: Beat, now: float) -> bool:
        """Takes note of a beat. True where the process is new. `now`: a monotonic clock in seconds."""
        key = (beat.stage, beat.id)
        expected = self._expected.pop(key, None)
        if beat.leaving:
            if self._peers.pop(key, None) is not None or expected is not None:
                _tell(self._left, beat)
            return False
        new = key not in self._peers
        self._peers[key] = (beat, now)
        if new:
            _tell(self._joined, beat)
        _tell(self._beaten, beat)
        return new

    def expect(self, stage: Stage, process: str, now: float) -> None:
        """Somebody relies on a process that is not known, or no longer: it leaves like any other if it stays silent."""
        key = (stage, process)
        if key not in self._peers:
            self._expected.setdefault(key, now)

    def sweep(self, now: float) -> list[Beat]:
        """Drops the processes that were silent for too long, and returns their last beats."""
        before = now - self._dead_after_s
        dead = [(key, beat) for key, (beat, seen) in self._peers.items() if seen < before]
        dead += [(key, Beat(*key)) for key, since in self._expected.items() if since < before]
        for key, beat in dead:
            self._peers.pop(key, None)
            self._expected.pop(key, None)
            _tell(self._left, beat)
        return [beat for _, beat in dead]

    def forgive(self, deaf_s: float, now: float) -> None:
        """Takes the time off everybody's silence in which it was this process that could not hear."""
        self._peers = {key: (beat, min(seen + deaf_s, now)) for key, (beat, seen) in self._peers.items()}
        self._expected = {key: min(since + deaf_s, now) for key, since in self._expected.items()}

    def get(self, stage: Stage, process: str) -> Beat | None:
        """The last beat of one process, if it is there."""
        entry = self._peers.get((stage, process))
        return entry[0] if entry else None

    def age(self, stage: Stage, process: str, now: float) -> float:
        """Seconds since a process was last heard of; infinite where it is not there."""
        entry = self._peers.get((stage, process))
        return now - entry[1] if entry else float("inf")

    def living(self, stage: Stage) -> Iterator[Beat]:
        """All processes of a stage, draining ones included."""
        return (beat for (kind, _), (beat, _) in self._peers.items() if kind == stage)

    def able(self, stage: Stage, model: str) -> list[Beat]:
        """The processes of a stage that take new work for a model."""
        return [
            beat for beat in self.living(stage) if not beat.draining and any(card.name == model for card in beat.models)
        ]


def _tell(listeners: list[Listener], beat: Beat) -> None:
    for listener in listeners:
        listener(beat)
