"""Opens turns over the bus and puts their events together again.

One turn may take several attempts. A preprocessor that does not accept it, or dies with it, is replaced by another. A
worker that dies in mid-turn hands back its tokens, and the turn goes on behind them on another worker. The client gets
one stream: the turn's cursor drops what an earlier attempt has sent. A superseded attempt is cancelled, and events with
its number are ignored. Where no process can take a turn over, it waits for one: a turn in progress for `recovery_s`, a
new one for `wait_s`.
"""

import asyncio
from typing import Any, Literal

import msgspec

from schemas import subjects
from schemas.control import Cancel, Heartbeat, StreamPosition
from schemas.conversation import Conversation
from schemas.errors import (
    DEADLINE_PASSED,
    RETRY_AFTER_S,
    EngineFailed,
    ErrorInfo,
    TimedOut,
    TurnwireError,
    Unavailable,
    raised,
)
from schemas.events import Delta, Failed, Finish, HostedResults, Interrupted, Prepared, TurnEvent
from schemas.frames import (
    CountRequest,
    DetokenizeRequest,
    EventEntry,
    EventFrame,
    TextReply,
    TokenizeRequest,
    pack_ids,
)
from services.frontend.turns.catalog import ModelCatalog
from services.frontend.turns.interfaces import CancelReason, ContinuedAnswer, TurnSink
from services.frontend.turns.metrics import ModelProcesses
from services.frontend.turns.open_turn import BusTurn
from services.frontend.turns.preprocessor_client import PreprocessorClient, unreachable
from services.frontend.turns.process_watch import BOTH_LOST, RESCUE_S, ProcessWatch
from services.frontend.turns.stage_wait import StageWait
from services.frontend.turns.turn_span import TurnSpan
from services.runtime.bus import Delivery
from services.runtime.config import FrontendConfig
from services.runtime.observability.metrics import register
from services.runtime.process import Process
from services.runtime.recent_turns import RecentTurns
from services.runtime.streams.frames import FrameReceiver
from services.runtime.streams.turn_log import Cursor, Verdict

CANCEL_AGAIN_S = 1.0
"""How often the cancellation of a turn that still sends events is repeated."""

_decode_frame = msgspec.json.Decoder(EventFrame).decode


class BusGateway:
    """A `TurnGateway` over the bus."""

    def __init__(self, process: Process, config: FrontendConfig) -> None:
        self._process = process
        self._config = config
        self._log = process.log
        self._catalog = ModelCatalog(
            process.registry,
            default_model=config.default_model,
            accept_any_model=config.accept_any_model,
            publish=lambda notice: process.publish(subjects.frontends(), notice),
        )
        self.apply = self._catalog.apply
        self.models = self._catalog.models
        self.resolve = self._catalog.resolve
        register(process.metrics, ModelProcesses(self._catalog))
        self._stages = StageWait(process)
        self._preprocessors = PreprocessorClient(process, config, self._stages)
        self._turns: dict[str, BusTurn] = {}
        self._receiver = FrameReceiver(process, "parser", self._positions, on_given_up=self._given_up)
        self._cancelled = RecentTurns(CANCEL_AGAIN_S)
        self._empty = asyncio.Event()
        self._empty.set()
        process.registry.on_leave(self._peer_left)
        ProcessWatch(process, self._turns.values, on_lost=self._lost, on_late=self._late)
        process.on_reconnect.append(self._reconnected)

    async def start(self) -> None:
        """Subscribes; from now on turns can be opened."""
        await self._process.subscribe(subjects.events(self._process.id), self._receive)

    async def drain(self) -> None:
        """Returns when no turn is open. Cancelled, it ends those that are, each with an error."""
        try:
            await self._empty.wait()
        except asyncio.CancelledError:
            for turn in list(self._turns.values()):
                self._supersede(turn, "shut down")
                self._fail(turn, Unavailable("this server was shut down", retry_after_s=RETRY_AFTER_S).info)
            raise

    @property
    def running(self) -> int:
        """The number of open turns."""
        return len(self._turns)

    # -- the interface --------------------------------------------------------------------------------------------

    async def open(self, conversation: Conversation, sink: TurnSink, *, turn_id: str) -> BusTurn:
        """See `TurnGateway.open`."""
        card = self.resolve(conversation.model)
        if self._process.draining and not (isinstance(sink, ContinuedAnswer) and sink.continues):
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        conversation = msgspec.structs.replace(conversation, model=card.name)
        now = asyncio.get_running_loop().time()
        turn = BusTurn(turn_id, card, conversation, sink, now + self._config.request_timeout_s, self._cancel)
        turn.wait_until = now + self._config.wait_s
        if self._process.tracer is not None:
            turn.span = TurnSpan.open(self._process.tracer, turn_id, conversation)
        self._turns[turn_id] = turn
        self._empty.clear()
        try:
            turn.prepared = await self._attempt(turn)
        except asyncio.CancelledError:
            self._cancel(turn, "hangup")
            raise
        except TurnwireError as error:
            self._close(turn, error=error.info)
            raise
        return turn

    async def count(self, conversation: Conversation) -> int:
        """See `TurnGateway.count`."""
        card = self.resolve(conversation.model)
        conversation = msgspec.structs.replace(conversation, model=card.name)
        return (await self._preprocessors.ask(subjects.count, card.name, CountRequest(conversation))).count

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """See `TurnGateway.tokenize`."""
        card = self.resolve(model)
        if conversation is not None:
            conversation = msgspec.structs.replace(conversation, model=card.name)
        request = TokenizeRequest(text, conversation, add_special_tokens)
        return await self._preprocessors.ask(subjects.tokenize, card.name, request)

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """See `TurnGateway.detokenize`."""
        card = self.resolve(model)
        return await self._preprocessors.ask(subjects.detokenize, card.name, DetokenizeRequest(pack_ids(token_ids)))

    def readiness(self) -> dict[str, Any]:
        """See `TurnGateway.readiness`."""
        ready = self._catalog.ready()
        bus, draining = not self._process.cut_off, self._process.draining
        return {
            "ready": bus and bool(ready) and not draining,
            "draining": draining,
            "bus": bus,
            "models": ready,
            "turns": len(self._turns),
            "stages": self._catalog.stages(),
        }

    def live(self) -> bool:
        """See `TurnGateway.live`."""
        return self._process.failure is None

    # -- attempts -------------------------------------------------------------------------------------------------

    async def _attempt(self, turn: BusTurn) -> Prepared:
        """Tries preprocessors until a worker has the turn.

        Raises:
            Unavailable: no process could take the turn up to its `wait_until`, or too many died with it.
            TurnwireError: it was refused.
        """
        tried: list[str] = []
        while True:
            self._move(turn)
            await self._stages.able(turn.card.name, turn.wait_until, patient=turn.opened)
            turn.preprocessor = await self._preprocessors.next(turn.card.name, tried)
            tried.append(turn.preprocessor)
            try:
                return await self._preprocessors.prepare(turn)
            except (TimedOut, Unavailable) as refusal:
                self._supersede(turn, str(refusal.info.kind))
                self._log.warning("frontend.attempt_failed", turn=turn.id, preprocessor=tried[-1], error=str(refusal))
                if self._turns.get(turn.id) is not turn or turn.failures >= self._config.attempts:
                    raise
                if refusal.info.code == DEADLINE_PASSED:
                    raise
                if asyncio.get_running_loop().time() >= turn.wait_until:
                    raise unreachable() from refusal

    def _supersede(self, turn: BusTurn, reason: str) -> None:
        """Ends the current attempt, whichever processes still work for it. `reason`: for the turn's trace."""
        self._publish_cancel(turn.card.name, turn.id, turn.attempt, "superseded")
        if turn.span is not None:
            turn.span.superseded(turn.attempt, reason)
        turn.attempt += 1
        turn.streaming = False
        turn.waited_s = 0.0

    def _resume(self, turn: BusTurn, error: ErrorInfo) -> None:
        """Starts the next attempt. The client gets `error` if that does not help."""
        turn.failures += 1
        if turn.failures >= self._config.attempts:
            self._fail(turn, error)
            return
        turn.wait_until = asyncio.get_running_loop().time() + self._config.bus.recovery_s

        async def attempt() -> None:
            try:
                await self._attempt(turn)
            except TurnwireError as refusal:
                self._log.warning("frontend.resume_failed", turn=turn.id, error=str(refusal))
                recovery = f"it could not be continued within {self._config.bus.recovery_s:g} s"
                late = asyncio.get_running_loop().time() >= turn.wait_until
                message = f"{error.message}; {recovery}: {refusal}" if late else f"{error.message}; {refusal}"
                self._fail(turn, msgspec.structs.replace(error, message=message))

        turn.resuming = self._process.spawn(attempt(), f"resume {turn.id}")

    def _interrupted(self, turn: BusTurn, lost: Interrupted) -> None:
        """The worker died in mid-turn: another one continues behind its tokens."""
        self._log.warning("frontend.interrupted", turn=turn.id, worker=lost.worker, tokens=len(lost.token_ids) // 4)
        self._supersede(turn, "worker lost")
        if turn.cursor.place > (lost.block, lost.offset) or turn.cursor.tokens > len(lost.token_ids) // 4:
            # The shard that sent more is gone, too. Another worker's tokens from here on would differ.
            self._fail(turn, msgspec.structs.replace(lost.error, message=BOTH_LOST))
            return
        if len(lost.token_ids) > len(turn.resume):
            turn.failures = 0  # a turn that gets further is not to blame for the deaths
        turn.resume = lost.token_ids
        turn.avoid = [*turn.avoid, lost.worker]
        self._resume(turn, lost.error)

    def _lost(self, turn: BusTurn, reason: str) -> None:
        """No process has the turn's tokens any more. A turn that has sent nothing yet can start again."""
        error = EngineFailed(reason).info
        self._supersede(turn, "tokens lost")
        if turn.cursor.place == (0, 0) and not turn.cursor.tokens:
            self._resume(turn, error)
        else:
            self._fail(turn, error)

    def _late(self, turn: BusTurn, reason: str) -> None:
        """No successor came in time."""
        self._supersede(turn, "no successor")
        self._fail(turn, EngineFailed(reason).info)

    def _fail(self, turn: BusTurn, error: ErrorInfo) -> None:
        if self._turns.get(turn.id) is turn:
            self._push(turn, [Failed(error)])
            turn.fail_attempt(raised(error))

    def _push(self, turn: BusTurn, events: list[TurnEvent], tokens: int = 0) -> None:
        """Hands events to the sink. Every terminal event passes here; it closes the turn, so there is only one."""
        if turn.span is not None:
            turn.span.take(events)
        if isinstance(events[-1], Finish | Failed):
            self._close(turn)
        turn.sink.push(events, tokens)

    def _close(self, turn: BusTurn, *, error: ErrorInfo | None = None, cancelled: CancelReason | None = None) -> None:
        if self._turns.get(turn.id) is turn:
            del self._turns[turn.id]
            if turn.span is not None:
                turn.span.end(error, cancelled)
        if not self._turns:
            self._empty.set()

    def _move(self, turn: BusTurn) -> None:
        """Gives a turn that no model has yet to another one with the same alias, if its own takes no turns any more."""
        alias = turn.conversation.client.alias
        if alias is not None and not turn.opened and not self._catalog.takes_turns(turn.card.name):
            turn.card = self.resolve(alias, turn.conversation)
            turn.conversation = msgspec.structs.replace(turn.conversation, model=turn.card.name)

    def _cancel(self, turn: BusTurn, reason: CancelReason) -> None:
        if self._turns.get(turn.id) is not turn:
            return
        self._close(turn, cancelled=reason)
        self._publish_cancel(turn.card.name, turn.id, turn.attempt, reason)
        if turn.resuming is not None:
            turn.resuming.cancel()
        self._log.info("frontend.cancelled", turn=turn.id, reason=reason)

    def _publish_cancel(
        self, model: str, turn: str, attempt: int, reason: CancelReason | Literal["superseded"]
    ) -> None:
        self._cancelled.note(turn, attempt)
        self._process.publish(subjects.cancel(model), Cancel(turn, attempt, reason))

    # -- events ---------------------------------------------------------------------------------------------------

    def _receive(self, delivery: Delivery) -> None:
        frame = _decode_frame(delivery.data)
        if not frame.seq:
            for entry in frame.entries:
                self._refused(entry)
            if frame.entries:  # else it is a worker's or a parser's probe, which needs no answer
                delivery.reply(b"")
            return
        if not self._receiver.opens(frame.sender, frame.seq):
            return
        turns, sender = self._turns, frame.sender
        for entry in frame.entries:
            turn = turns.get(entry.turn)
            if turn is None or entry.attempt != turn.attempt:
                self._stray(entry, turn)
                continue
            try:
                if _is_next(entry.events, turn):
                    turn.parser = sender
                    turn.sink.push(entry.events, entry.tokens)
                else:
                    self._take(turn, sender, entry)
            except Exception:  # one turn's failure must not affect the others of the frame
                self._log.exception("frontend.turn_failed", turn=turn.id)
                self._supersede(turn, "internal")
                self._fail(turn, EngineFailed("internal error").info)
        self._receiver.arrived(sender, frame.seq, len(delivery.data))

    def _refused(self, entry: EventEntry) -> None:
        """A preprocessor could not give the turn to a worker."""
        turn = self._turns.get(entry.turn)
        if turn is not None and turn.attempt == entry.attempt:
            for event in entry.events:
                if isinstance(event, Failed):
                    turn.fail_attempt(raised(event.error))

    def _take(self, turn: BusTurn, sender: str, entry: EventEntry) -> None:
        """Takes a parser's events of the current attempt. The first of them is `Prepared`."""
        fresh: list[TurnEvent] = []
        for event in entry.events:
            if isinstance(event, Prepared):
                self._begin(turn, event)
                continue
            if isinstance(event, HostedResults):  # never on the bus
                continue
            if not turn.streaming:
                self._receiver.gap(sender, Cursor().standing(turn.id, entry.attempt))
                break
            taken = turn.cursor.accept(event)
            if taken is Verdict.GAP:
                self._receiver.gap(sender, turn.position())
                break
            if isinstance(taken, Interrupted):
                self._interrupted(turn, taken)
                break
            if not isinstance(taken, Verdict):
                fresh.append(taken)
        if fresh:
            turn.parser = sender
            self._push(turn, fresh, entry.tokens)

    def _begin(self, turn: BusTurn, prepared: Prepared) -> None:
        turn.worker, turn.parser = prepared.worker, prepared.parser
        if turn.span is not None:
            turn.span.prepared(prepared)
        now, registry = asyncio.get_running_loop().time(), self._process.registry
        registry.expect("worker", turn.worker, now)
        registry.expect("parser", turn.parser, now)
        if turn.outcome is not None and not turn.outcome.done():
            turn.streaming = True
            turn.outcome.set_result(prepared)
            if not turn.opened:
                turn.opened = True
                turn.sink.opened(prepared)

    def _stray(self, entry: EventEntry, turn: BusTurn | None) -> None:
        """Cancels again what still sends events: the first cancellation was lost on the way."""
        if entry.turn in self._cancelled or (turn is not None and entry.attempt > turn.attempt):
            return
        if any(isinstance(event, Finish | Failed) for event in entry.events):
            return
        for model in [turn.card.name] if turn else [card.name for card in self.models()]:
            self._publish_cancel(model, entry.turn, entry.attempt, "superseded")

    # -- peers ----------------------------------------------------------------------------------------------------

    def _of_parser(self, parser: str) -> list[BusTurn]:
        return [turn for turn in self._turns.values() if turn.parser == parser and turn.streaming]

    def _positions(self, parser: str) -> list[StreamPosition]:
        return [turn.position() for turn in self._of_parser(parser)]

    def _given_up(self, parser: str) -> None:
        """A parser took this frontend for dead and dropped its turns."""
        for turn in self._of_parser(parser):
            self._lost(turn, "this server was cut off from the turn")

    def _peer_left(self, peer: Heartbeat) -> None:
        wait_s = self._config.bus.dead_after_s + RESCUE_S
        for turn in list(self._turns.values()):
            if peer.stage in ("worker", "parser") and turn.outcome is not None:
                # The frontend does not know yet which of them have the turn. If both are lost, no event comes.
                reason = f"a {peer.stage} was lost, and the turn did not begin"
                asyncio.get_running_loop().call_later(wait_s, self._begin_again, turn, turn.outcome, reason)
            elif (peer.stage, peer.id) == ("preprocessor", turn.preprocessor) and turn.outcome is not None:
                self._begin_again(turn, turn.outcome, "the preprocessor was lost")

    def _begin_again(self, turn: BusTurn, outcome: asyncio.Future[Prepared], reason: str) -> None:
        """Starts another attempt, unless the one with this outcome has begun."""
        if turn.outcome is outcome and turn.fail_attempt(Unavailable(reason)):
            turn.failures += 1
            turn.wait_until = asyncio.get_running_loop().time() + self._config.bus.recovery_s

    def _reconnected(self) -> None:
        """What was on its way is lost. Streams are replayed; a turn that has no stream yet is requested again."""
        for turn in list(self._turns.values()):
            turn.fail_attempt(Unavailable("the connection to the bus was lost"))


def _is_next(events: list[TurnEvent], turn: BusTurn) -> bool:
    """The common case: a frame has the turn's next delta and nothing else. Moves the cursor behind it."""
    return (
        len(events) == 1
        and type(event := events[0]) is Delta
        and turn.streaming
        and event.offset == turn.cursor.length
        and turn.cursor.accept(event) is event
    )
