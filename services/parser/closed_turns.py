"""Remembers the turns that a shard no longer parses, and cancels their decoding: their tokens may
still arrive."""

from typing import Final

from schemas import subjects
from schemas.control import Cancel
from services.runtime.caches.recent_turns import RecentTurns
from services.runtime.process import Process

CANCEL_AGAIN_S: Final = 0.5
"""The least time between two cancels to the worker of a closed turn with tokens that still
arrive."""


class ClosedTurns:
    """Turns that have ended here or were cancelled, and which of them have a recent cancel."""

    def __init__(self, process: Process, model: str) -> None:
        self._process = process
        self._model = model
        self._closed = RecentTurns()
        self._unreadable = RecentTurns()
        """Closed turns with a frontend that cannot be read here. Their worker reports the
        failure."""
        self._cancelled = RecentTurns(CANCEL_AGAIN_S)

    def has(self, turn: str, attempt: int) -> bool:
        """Returns whether an attempt is closed, so that late repeats of its tokens are not
        parsed."""
        return self._closed.attempt(turn) >= attempt

    def close(self, turn: str, attempt: int) -> None:
        """Closes an attempt, and with it all earlier ones."""
        self._closed.note(turn, attempt)

    def close_unreadable(self, turn: str, attempt: int) -> None:
        """Closes and cancels an attempt with a frontend that cannot be read here."""
        self._publish(Cancel(turn, attempt, "unreadable"))
        self._closed.note(turn, attempt)
        self._unreadable.note(turn, attempt)

    def cancel_failed(self, turn: str, attempt: int) -> None:
        """Cancels the decoding of a turn that has failed here. Late tokens cancel it again."""
        self._publish(Cancel(turn, attempt, "failed"))

    def cancel(self, cancel: Cancel) -> None:
        """Cancels the decoding of a turn that has ended here."""
        self._publish(cancel)
        self.note_cancel(cancel)

    def cancel_again(self, turn: str) -> None:
        """Repeats the cancel of a closed turn, because its tokens still arrive."""
        if turn in self._cancelled:
            return
        # rare: tokens of a turn arrive after its end
        attempt = self._closed.attempt(turn)
        if turn in self._unreadable:
            self.cancel(Cancel(turn, attempt, "unreadable"))
        else:
            self.cancel(Cancel(turn, attempt, "superseded"))

    def note_cancel(self, cancel: Cancel) -> None:
        """Notes a cancel that the worker of a turn gets."""
        self._cancelled.note(cancel.turn, cancel.attempt)

    def _publish(self, cancel: Cancel) -> None:
        self._process.publish(subjects.cancel(self._model), cancel)
