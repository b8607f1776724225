"""Records the turns of rollouts: the tokens that the engine was prompted with and decoded.

`RecordingGateway` is between hosted tools and the bus: each turn of the model is one record. A turn
is decoded with the rollout's sampling, and reports ids and log probabilities, which its client gets
only if it asked for them.
"""

import asyncio
import time
from collections import defaultdict

from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Sampling
from schemas.events import (
    Delta,
    Failed,
    Finish,
    LastEvent,
    OutputTokens,
    Prepared,
    TurnEvent,
    failure_of,
)
from schemas.notices import RolloutChanged
from services.frontend.rollouts.limits import ended_error, rollout_conversation
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.turn_recorder import TurnRecorder
from services.frontend.rollouts.turn_writer import TurnWriter
from services.frontend.rollouts.view import RolloutView
from services.frontend.turns.cancel_scope import CancelScope
from services.frontend.turns.interfaces import (
    Admitted,
    CancelReason,
    OpenTurn,
    TurnGateway,
    TurnSink,
)
from services.rollouts.stored_turns import FailedTurn, WhyMissing
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.storage.kv import place_of


class RecordingGateway(TurnGateway):
    """Opens turns; those of rollouts are recorded."""

    def __init__(
        self,
        gateway: TurnGateway,
        rollouts: Rollouts,
        writer: TurnWriter,
        log: FilteringBoundLogger,
    ) -> None:
        self.gateway = gateway
        self.writer = writer
        self.log = log
        self._rollouts = rollouts
        self._running: defaultdict[str, set[RecordedTurn]] = defaultdict(set)
        """The turns that run, by the places of their rollouts."""
        rollouts.on_cancel.append(self._cancel_turns)

    @override
    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> OpenTurn:
        """Opens a turn as `TurnGateway.open`. Raises Invalid for a rollout that has ended, or ends
        with this turn because of a limit."""
        rollout = admitted.caller.rollout
        if rollout is None:
            return await self.gateway.open(admitted, sink, turn_id=turn_id)
        view = await self._rollouts.find(rollout.id)
        await self._rollouts.end_at_limit(view, admitted.card.weights_version)
        _require_open(view)
        if admitted.conversation.sampling.max_tokens == 0:  # the client only fills the cache
            return await self.gateway.open(admitted, sink, turn_id=turn_id)
        return await RecordedTurn(self, view, admitted, sink, turn_id).open()

    @override
    async def drain(self) -> None:
        """Returns when no turn is open and all records are stored."""
        try:
            await self.gateway.drain()
        finally:
            await self.writer.drain()

    async def begin_turn(self, view: RolloutView, turn: str) -> None:
        """Stores that a turn is open: if this process dies, it is known to be missing. Raises
        Invalid if the rollout has ended meanwhile, or other turns, that run now, are the last that
        it may have."""
        run = view.state.run
        await self.writer.begin(view, turn, time.time())
        await self._rollouts.refresh(view, 0.0)
        if view.state.run != run:
            raise ended_error("restarted")
        _require_open(view)
        most = view.rollout.limits.turns
        if most is not None and self._rollouts.turns_before(view, turn) >= most:
            raise ended_error("turns")

    def add_turn(self, rollout: str, turn: "RecordedTurn") -> None:
        """Has a turn end when its rollout is aborted."""
        self._running[place_of(rollout)].add(turn)

    def remove_turn(self, rollout: str, turn: "RecordedTurn") -> None:
        """Notes that a turn has ended."""
        place = place_of(rollout)
        self._running[place].discard(turn)
        if not self._running[place]:
            del self._running[place]

    def _cancel_turns(self, notice: RolloutChanged) -> None:
        for turn in [*self._running.get(notice.place, ())]:
            turn.abort(notice.cancels, notice.run)


class RecordedTurn(TurnSink):
    """One turn of a rollout, between the bus and its client's sink. It is recorded once: with its
    tokens, or with the reason why it has none."""

    def __init__(
        self,
        recording: RecordingGateway,
        view: RolloutView,
        admitted: Admitted,
        sink: TurnSink,
        id: str,
    ) -> None:
        self._recording = recording
        self._gateway = recording.gateway
        self._writer = recording.writer
        self._log = recording.log
        self._view = view
        self._run = view.state.run
        self._id = id
        self._sink = sink
        self._client_sampling: Sampling = admitted.conversation.sampling
        """The client's own sampling: whether it gets ids and log probabilities."""
        has_logprobs = "logprobs" in admitted.card.features
        conversation = rollout_conversation(admitted.conversation, view, logprobs=has_logprobs)
        self._admitted = admitted.with_conversation(conversation)
        model = admitted.card.served_name
        self._record = TurnRecorder(id, conversation, model, time.time())
        self._turn: OpenTurn | None = None
        """None until it is open."""
        self._opening = CancelScope()
        """Cancelled if the rollout is aborted while the turn is opened."""
        self._aborted = ""
        """Why its rollout cancels it; "": it does not."""
        self._is_recorded = False

    # -- opening

    async def open(self) -> OpenTurn:
        """Opens the turn, as `TurnGateway.open`."""
        self._recording.add_turn(self._view.rollout.id, self)
        try:
            with self._opening:
                await self._recording.begin_turn(self._view, self._id)
                self._turn = await self._gateway.open(self._admitted, self, turn_id=self._id)
        except asyncio.CancelledError:
            self._fail("cancelled")
            raise
        except Exception:
            self._fail("refused")
            raise
        if self._turn is None:
            raise ended_error(self._aborted)
        if self._aborted:  # just before the turn was open
            self._turn.cancel("abandoned")
            raise ended_error(self._aborted)
        return OpenTurn(self._for_client(self._turn.prepared), self.cancel)

    @override
    def opened(self, prepared: Prepared) -> None:
        self._record.begin(prepared)
        self._sink.opened(self._for_client(prepared))

    # -- events

    @override
    def push(self, events: list[TurnEvent], tokens: int = 0) -> None:
        try:
            self._keep(events)
        except Exception:  # the client gets its turn
            self._log.exception("rollout.turn_not_recorded", turn=self._id)
            self._fail("failed")
        shown = self._events_for_client(events)
        if shown:
            self._sink.push(shown, tokens)

    def _keep(self, events: list[TurnEvent]) -> None:
        self._record.add(events)
        last = events[-1]
        if isinstance(last, LastEvent):
            self._end(last)

    def cancel(self, reason: CancelReason) -> None:
        """Stops the turn, which its client does not want any more."""
        if self._turn is not None:
            self._turn.cancel(reason)
        self._fail("cancelled")

    def abort(self, why: str, run: int) -> None:
        """Ends a turn of this run with its rollout; the client gets an error. `why`: as in
        `RolloutChanged.cancels`."""
        if self._is_recorded or run != self._run:
            return
        self._fail("aborted")
        self._aborted = why
        if self._turn is None:
            self._opening.cancel("abandoned")
        else:
            self._turn.cancel("abandoned")
            self._sink.push([Failed(ended_error(why).info)])

    def _end(self, last: LastEvent) -> None:
        if self._is_recorded:
            return
        if not isinstance(last, Finish) or failure_of(last) is not None:
            self._fail("failed")
        elif self._record.output_tokens < last.usage.kept:
            self._fail("incomplete")
        else:
            turn = self._record.turn(last, time.time())
            newest = self._admitted.card.weights_version
            self._writer.write(self._view, self._run, turn, newest)
            self._leave()

    def _fail(self, why: WhyMissing) -> None:
        if not self._is_recorded:
            failed = FailedTurn(self._id, self._run, why, self._record.output_tokens)
            self._writer.fail(self._view, failed)
            self._leave()

    def _leave(self) -> None:
        self._is_recorded = True
        self._recording.remove_turn(self._view.rollout.id, self)

    # -- what the client gets

    def _for_client(self, prepared: Prepared) -> Prepared:
        if self._client_sampling.return_token_ids:
            return prepared
        return replace(prepared, prompt_ids=b"", opening="", images=[])

    def _events_for_client(self, events: list[TurnEvent]) -> list[TurnEvent]:
        asked = self._client_sampling
        if asked.return_token_ids and asked.logprobs is not None:
            return events
        if not asked.return_token_ids:
            events = [event for event in events if not isinstance(event, OutputTokens)]
        if asked.logprobs is None:
            events = [_without_logprobs(event) for event in events]
        return events


def _require_open(view: RolloutView) -> None:
    if view.state.status != "open":
        raise ended_error(view.state.reason or view.state.status)


def _without_logprobs(event: TurnEvent) -> TurnEvent:
    if isinstance(event, Delta | OutputTokens) and event.logprobs is not None:
        return replace(event, logprobs=None)
    return event
