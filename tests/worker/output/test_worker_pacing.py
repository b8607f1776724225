"""Frames of ordinary steps are a gap apart; nothing stays unsent."""

from collections.abc import Callable

import pytest

from services.worker.output.pacing import Pacer


class Trial:
    """A pacer on a clock that the test moves, its sender, and the frames that it scheduled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.drains: list[tuple[float, str]] = []
        self.timers: list[tuple[float, Callable[[str], None], str]] = []
        self.scheduled: set[str] = set()
        self.is_scheduled = self.scheduled.__contains__
        monkeypatch.setattr("services.worker.output.pacing.time.monotonic", lambda: self.now)
        self.pacer = Pacer(0.001, self, self)  # type: ignore[arg-type]

    def schedule(self, parser: str) -> None:
        self.scheduled.add(parser)
        self.drains.append((round(self.now - 100.0, 6), parser))

    def call_later(self, delay: float, call: Callable[[str], None], parser: str) -> None:
        """The loop's."""
        self.timers.append((self.now + delay, call, parser))

    def tick(self, to: float) -> None:
        """The end of a tick, and the next one at this time."""
        self.scheduled.clear()
        self.now = 100.0 + to
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, call, parser in due:
            call(parser)


def test_steps_that_are_far_apart_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch)
    for step in range(3):
        trial.tick(step * 0.01)
        for _ in range(64):
            trial.pacer.send_soon("p")
    assert trial.drains == [(0.0, "p"), (0.01, "p"), (0.02, "p")]


def test_quick_steps_share_a_frame_and_the_last_of_them_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Trial(monkeypatch)
    for step in range(25):
        trial.tick(step * 0.0001)
        trial.pacer.send_soon("p")
    assert [at for at, _ in trial.drains] == pytest.approx([0.0, 0.001, 0.002], abs=0.00015)
    trial.tick(0.01)
    trial.tick(0.02)
    assert len(trial.drains) == 4
    trial.pacer.send_soon("p")
    trial.tick(0.0202)
    trial.pacer.send_now("p")
    assert trial.drains[4:] == [(0.02, "p"), (0.0202, "p")], "urgent tokens do not wait"
