"""Watches the processes of open turns, and the connection to them.

A process that was lost fails the attempts that it may have. A streaming turn continues by itself: a
worker passes the turns of a dead parser to another parser, as soon as there is one, and a parser
hands back the turns of a dead worker. If neither happens, both are lost, or there is no successor.
"""

import asyncio

from schemas import subjects
from schemas.control import Credit, Heartbeat
from schemas.errors import EngineFailed, Unavailable
from services.frontend.gateway.attempts import BOTH_LOST, TurnAttempts
from services.frontend.gateway.turn_state import Attempt, BusTurn, StateEvent, Streaming
from services.frontend.gateway.turn_table import TurnTable
from services.runtime.process import Process

RESCUE_S = 2.0
"""Time for a worker to send a dead parser's tokens again, once it has noticed the death. Later, it
counts as dead."""


class ProcessWatch:
    """Checks the processes of all streaming turns before each heartbeat, and fails the attempts of
    processes that leave."""

    def __init__(self, process: Process, table: TurnTable, attempts: TurnAttempts) -> None:
        self._process = process
        self._bus = process.config.bus
        self._table = table
        self._attempts = attempts
        process.registry.on_leave.append(self._on_peer_left)
        process.on_tick.append(self._tick)
        process.on_reconnect.append(self._on_reconnect)

    # -- turns without a stream

    def _on_peer_left(self, peer: Heartbeat) -> None:
        models = {card.name for card in peer.models}
        for turn in self._table.all():
            attempt = turn.attempt
            if not attempt.is_pending:
                continue
            if peer.stage in ("worker", "parser"):
                if models and turn.card.name not in models:
                    continue
                # Which worker and parser have the turn is not known yet. If both are lost, no event
                # arrives.
                asyncio.get_running_loop().call_later(
                    self._bus.dead_after_s + RESCUE_S,
                    self._fail_attempt,
                    turn,
                    attempt,
                    f"a {peer.stage} was lost, and the turn did not begin",
                )
            elif (peer.stage, peer.id) == ("preprocessor", attempt.preprocessor):
                self._fail_attempt(turn, attempt, "the preprocessor was lost")

    def _fail_attempt(self, turn: BusTurn, attempt: Attempt, reason: str) -> None:
        """Fails an attempt that is still being prepared, so that the next one is made."""
        if turn.fail_attempt(attempt, StateEvent.PROCESS_LEFT, Unavailable(reason)):
            turn.failures += 1
            now = asyncio.get_running_loop().time()
            turn.placing.until = now + self._bus.recovery_s

    def _on_reconnect(self) -> None:
        """Requests turns without a stream again: messages in flight are lost. The links replay
        streams."""
        for turn in self._table.all():
            error = Unavailable("the connection to the bus was lost")
            turn.fail_attempt(turn.attempt, StateEvent.RECONNECTED, error)

    # -- turns with a stream

    def _tick(self, _now: float) -> None:
        if self._process.cut_off:
            return
        for turn in self._table.all():
            if isinstance(turn.state, Streaming):
                self._check(turn, turn.state)

    def _check(self, turn: BusTurn, stream: Streaming) -> None:
        registry = self._process.registry
        has_worker = registry.get("worker", stream.worker) is not None
        has_parser = registry.get("parser", stream.parser) is not None
        if has_worker and has_parser:
            stream.lost_s = 0.0
            return
        stream.lost_s += self._bus.beat_interval_s
        if not has_worker and not has_parser:
            if self._is_beyond_rescue(stream):
                # rare: worker and parser of a turn are both lost
                self._attempts.restart_or_fail(turn, BOTH_LOST)
                return
            self._probe_parser(stream)
        if stream.lost_s > self._bus.recovery_s:
            # rare: no successor came in time
            lost = "parser" if has_worker else "worker"
            error = EngineFailed(
                f"the {lost} of this turn was lost, and no other continued it within "
                f"{self._bus.recovery_s:g} s"
            )
            self._table.abandon(turn, "no successor", error.info, StateEvent.NO_SUCCESSOR)

    def _is_beyond_rescue(self, stream: Streaming) -> bool:
        is_dead = stream.dead_parser == stream.parser
        return is_dead and stream.lost_s > self._bus.dead_after_s + RESCUE_S

    def _probe_parser(self, stream: Streaming) -> None:
        """Records whether a parser without heartbeats is dead. A suspended one may resume and hand
        the turn back."""
        parser = stream.parser

        def record_death() -> None:
            # rare: the parser that a turn lost has no subscription any more
            stream.dead_parser = parser

        credit = Credit(receiver="", seq=0, window_bytes=0)  # grants nothing
        self._process.probe(subjects.credit("parser", parser), credit, record_death)
