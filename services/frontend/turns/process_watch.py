"""Watches the workers and parsers of open turns, and reports turns that no process can continue.

A worker passes the turns of a dead parser to another parser, as soon as there is one. A parser
hands back the turns of a dead worker. If neither happens, both are lost, or there is no successor.
"""

from collections.abc import Callable, Collection

from schemas import subjects
from schemas.control import Credit
from services.frontend.turns.turn_state import Attempt, BusTurn, State
from services.runtime.process import Process

BOTH_LOST = "the worker and the parser of this turn were lost"
RESCUE_S = 2.0
"""Time for a worker to send a dead parser's tokens again, once it has noticed the death. Later, it
counts as dead."""

Report = Callable[[BusTurn, str], None]


class ProcessWatch:
    """Checks the processes of all streaming turns, before each heartbeat."""

    def __init__(
        self,
        process: Process,
        turns: Callable[[], Collection[BusTurn]],
        *,
        on_lost: Report,
        on_late: Report,
    ) -> None:
        """
        Args:
            on_lost: called with (turn, reason) when no process has the turn's tokens any more.
            on_late: called with (turn, reason) when a process was lost and had no successor within
            `recovery_s`.
        """
        self._process = process
        self._turns = turns
        self._on_lost = on_lost
        self._on_late = on_late
        process.on_tick.append(self._tick)

    def _tick(self, _now: float) -> None:
        if not self._process.cut_off:
            for turn in list(self._turns()):
                if turn.state is State.STREAMING:
                    self._check(turn)

    def _check(self, turn: BusTurn) -> None:
        attempt, registry, bus = turn.attempt, self._process.registry, self._process.config.bus
        has_worker = registry.get("worker", attempt.worker) is not None
        has_parser = registry.get("parser", attempt.parser) is not None
        if has_worker and has_parser:
            attempt.lost_s = 0.0
            return
        attempt.lost_s += bus.beat_interval_s
        if not has_worker and not has_parser:
            if (
                attempt.dead_parser == attempt.parser
                and attempt.lost_s > bus.dead_after_s + RESCUE_S
            ):
                # rare: worker and parser of a turn are both lost
                self._on_lost(turn, BOTH_LOST)
                return
            self._probe_parser(attempt)
        if attempt.lost_s > bus.recovery_s:
            # rare: no successor came in time
            lost = "parser" if has_worker else "worker"
            self._on_late(
                turn,
                f"the {lost} of this turn was lost, and no other continued it within {bus.recovery_s:g} s",
            )

    def _probe_parser(self, attempt: Attempt) -> None:
        """Records whether a parser without heartbeats is dead. A suspended one may resume and hand
        the turn back."""
        parser = attempt.parser

        def record_death() -> None:
            # rare: the parser that a turn lost has no subscription any more
            attempt.dead_parser = parser

        credit = Credit(receiver="", seq=0, window=0)  # grants nothing
        self._process.probe(subjects.credit("parser", parser), credit, record_death)
