"""Tracks the living processes by their heartbeats, and calls listeners when one joins, changes or
leaves. Pure.

`process.Process` passes it heartbeats and the time. A process has left when its last heartbeat
reports it, or when none came for `dead_after_s`. This also holds for a process that was only
expected, so that listeners are called even if no heartbeat of it ever came. For `recovery_s` after
the end of a process, a successor is expected.
"""

from collections.abc import Iterable, Iterator

from schemas.control import Heartbeat, ModelCard, Stage
from services.runtime.listeners import Listeners, OnError, raise_error

ProcessKey = tuple[Stage, str]
LATE_HEARTBEATS = 1.5
"""A process without a heartbeat for this many intervals is chosen last."""


class ProcessRegistry:
    """The living processes by stage and id. `now` is a monotonic clock in seconds."""

    def __init__(
        self, dead_after_s: float, recovery_s: float = 0.0, on_error: OnError = raise_error
    ) -> None:
        """`on_error`: gets what a listener raises; the other listeners are called all the same."""
        self._dead_after_s = dead_after_s
        self._recovery_s = recovery_s
        self._former: dict[ProcessKey, tuple[Heartbeat, float]] = {}
        """Processes that have left within `recovery_s`: the last heartbeat, and the time."""
        self._peers: dict[ProcessKey, tuple[Heartbeat, float]] = {}
        self._expected: dict[ProcessKey, float] = {}
        self.on_join = Listeners[Heartbeat](on_error)
        """Called with the first heartbeat of each process."""
        self.on_heartbeat = Listeners[Heartbeat](on_error)
        """Called with every heartbeat, the first included."""
        self.on_leave = Listeners[Heartbeat](on_error)
        """Called with the last heartbeat of each process that has left."""
        self.on_forget = Listeners[Heartbeat](on_error)
        """Called with it again, when no successor of the process is expected any longer."""

    def receive(self, heartbeat: Heartbeat, now: float) -> bool:
        """Records a heartbeat. Returns whether the process is new."""
        key = (heartbeat.stage, heartbeat.id)
        expected = self._expected.pop(key, None)
        if heartbeat.leaving:
            last = self._peers.pop(key, None)
            if last is not None:
                self._former[key] = (last[0], now)
            if last is not None or expected is not None:
                self.on_leave.call(heartbeat)
            return False
        new = key not in self._peers
        self._former.pop(key, None)
        self._peers[key] = (heartbeat, now)
        if new:
            self.on_join.call(heartbeat)
        self.on_heartbeat.call(heartbeat)
        return new

    def expect_heartbeats(self, stage: Stage, process: str, now: float) -> None:
        """Expects heartbeats of a process without any so far. Without heartbeats it leaves like any
        other process."""
        if (stage, process) not in self._peers:
            self._expected.setdefault((stage, process), now)

    def sweep(self, now: float) -> list[Heartbeat]:
        """Removes the processes without recent heartbeats, and returns their last ones.

        `now`: the latest time up to which this process has certainly received the others' messages.
        """
        before = now - self._dead_after_s
        dead = [(key, heartbeat) for key, (heartbeat, seen) in self._peers.items() if seen < before]
        dead += [(key, Heartbeat(*key)) for key, since in self._expected.items() if since < before]
        for key in [
            key for key, (_, left) in self._former.items() if now - left >= self._recovery_s
        ]:
            self.on_forget.call(self._former.pop(key)[0])
        for key, heartbeat in dead:
            self._expected.pop(key, None)
            if self._peers.pop(key, None) is not None:
                self._former[key] = (heartbeat, now)
            self.on_leave.call(heartbeat)
        return [heartbeat for _, heartbeat in dead]

    def discount(self, seconds: float, now: float) -> None:
        """Ignores a time in which this process could not receive the others' heartbeats."""
        self._peers = {
            key: (heartbeat, min(seen + seconds, now))
            for key, (heartbeat, seen) in self._peers.items()
        }
        self._expected = {key: min(since + seconds, now) for key, since in self._expected.items()}

    def get(self, stage: Stage, process: str) -> Heartbeat | None:
        """The last heartbeat of a living process."""
        entry = self._peers.get((stage, process))
        return entry[0] if entry else None

    def age(self, stage: Stage, process: str, now: float) -> float:
        """The seconds since the last heartbeat of a process; infinite if it is not alive."""
        entry = self._peers.get((stage, process))
        return now - entry[1] if entry else float("inf")

    def is_late(self, stage: Stage, process: str, now: float, interval_s: float) -> bool:
        """Whether a process should be chosen last. `interval_s`: that of heartbeats."""
        return self.age(stage, process, now) > LATE_HEARTBEATS * interval_s

    def living(self, stage: Stage) -> Iterator[Heartbeat]:
        """Yields all processes of a stage, draining ones included."""
        return (heartbeat for (kind, _), (heartbeat, _) in self._peers.items() if kind == stage)

    def former(self, stage: Stage) -> Iterator[Heartbeat]:
        """Yields the last heartbeats of the processes that have left within `recovery_s`."""
        return (heartbeat for (kind, _), (heartbeat, _) in self._former.items() if kind == stage)

    def awaited(self, stage: Stage, model: str) -> bool:
        """Whether a process of a stage serves a model, or a successor of one is expected."""
        peers = (*self.living(stage), *self.former(stage))
        return any(_serves(peer, model) for peer in peers)

    def able(self, stage: Stage, model: str) -> list[Heartbeat]:
        """The processes of a stage that accept work for a model."""
        peers = self.living(stage)
        return [peer for peer in peers if not peer.draining and _serves(peer, model)]


def cards_of(peers: Iterable[Heartbeat], model: str) -> list[ModelCard]:
    """The cards with which these processes describe a model."""
    return [card for peer in peers for card in peer.models if card.name == model]


def _serves(peer: Heartbeat, model: str) -> bool:
    return bool(cards_of([peer], model))
