"""The pipeline as the frontend's routes see it: turns opened over the bus, their events put together again.

One turn may take several attempts. A preprocessor that does not take it, or dies with it, is replaced by another; a
worker that dies in mid-turn hands back its tokens, and the turn goes on behind them on another worker. The client sees
one stream: what an attempt says again is dropped by the turn's cursor. An attempt that is over is called off, so that
nobody works for it, and its number is not used again, so that nothing of it is heard.
"""

import asyncio
import time
from collections import OrderedDict
from typing import Any

import msgspec

from schemas import subjects
from schemas.control import Beat, Cancel, ModelCard, Standing
from schemas.conversation import Conversation
from schemas.errors import EngineFailed, ErrorInfo, TimedOut, TurnwireError, Unavailable, raised
from schemas.events import Delta, Failed, Finish, Interrupted, Prepared, TurnEvent
from schemas.frames import (
    CountRequest,
    DetokenizeRequest,
    EventEntry,
    EventFrame,
    TextReply,
    TokenizeRequest,
    pack_ids,
)
from services.frontend.catalog import Catalog
from services.frontend.open_turn import Turn
from services.frontend.preprocessors import RETRY_AFTER_S, Preprocessors
from services.frontend.turns import CancelReason, TurnSink
from services.runtime.bus import Message
from services.runtime.config import FrontendConfig
from services.runtime.process import Process
from services.runtime.streams import FrameReceiver
from services.runtime.turnlog import Cursor, Verdict

PAUSE_S = 0.5
"""Before a preprocessor is asked a second time: after the bus was away, processes come back one by one."""
MAX_STRAYS = 4096
TELL_AGAIN_S = 1.0
"""Somebody who works for a turn that is over is told so, and told again after this time."""
RESCUE_S = 2.0
"""Beyond the time in which the others notice that a process died, they have so long to take its turns over."""

_decode_frame = msgspec.json.Decoder(EventFrame).decode


class Gateway:
    """A `TurnGateway` over the bus."""

    def __init__(self, process: Process, config: FrontendConfig) -> None:
        self._process = process
        self._config = config
        self._log = process.log
        self._catalog = Catalog(
            process.registry, default_model=config.default_model, accept_any_model=config.accept_any_model
        )
        self._preprocessors = Preprocessors(process, config)
        self._turns: dict[str, Turn] = {}
        self._receiver = FrameReceiver(process, "parser", self._standings, on_given_up=self._given_up)
        self._strays: OrderedDict[str, float] = OrderedDict()
        self._empty = asyncio.Event()
        self._empty.set()
        process.registry.on_leave(self._peer_left)

    async def start(self) -> None:
        """Subscribes; from now on turns can be opened."""
        await self._process.subscribe(subjects.events(self._process.id), self._frame)

    async def drain(self) -> None:
        """Returns when no turn is open. Cancelled, it ends those that are, each with an error."""
        try:
            await self._empty.wait()
        except asyncio.CancelledError:
            for turn in list(self._turns.values()):
                self._supersede(turn)
                self._fail(turn, Unavailable("this server was shut down", retry_after_s=RETRY_AFTER_S).info)
            raise

    @property
    def running(self) -> int:
        """Open turns."""
        return len(self._turns)

    # -- what the routes call -------------------------------------------------------------------------------------

    async def open(
        self, conversation: Conversation, sink: TurnSink, *, turn_id: str, traceparent: str | None = None
    ) -> Turn:
        """See `TurnGateway.open`."""
        card = self.resolve(conversation.model)
        if self._process.draining:
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        conversation = msgspec.structs.replace(conversation, model=card.name)
        deadline = time.time() + self._config.request_timeout_s
        turn = Turn(turn_id, card, conversation, sink, deadline=deadline, traceparent=traceparent, cancel=self._cancel)
        self._turns[turn_id] = turn
        self._empty.clear()
        try:
            turn.prepared = await self._attempt(turn)
        except asyncio.CancelledError:
            self._cancel(turn, "hangup")
            raise
        except TurnwireError:
            self._close(turn)
            raise
        return turn

    async def count(self, conversation: Conversation) -> int:
        """See `TurnGateway.count`."""
        card = self.resolve(conversation.model)
        conversation = msgspec.structs.replace(conversation, model=card.name)
        reply = await self._preprocessors.ask(subjects.count, card.name, CountRequest(conversation))
        return reply.count

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

    def models(self) -> list[ModelCard]:
        """See `TurnGateway.models`."""
        return self._catalog.models()

    def resolve(self, model: str) -> ModelCard:
        """See `TurnGateway.resolve`."""
        return self._catalog.resolve(model)

    def readiness(self) -> dict[str, Any]:
        """See `TurnGateway.readiness`."""
        ready = self._catalog.ready()
        bus, draining = self._process.bus.connected, self._process.draining
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

    # -- attempts ---------------------------------------------------------------------------------------------------

    async def _attempt(self, turn: Turn) -> Prepared:
        """Asks preprocessors until a worker has the turn. Raises the last refusal."""
        tried: list[str] = []
        while True:
            turn.preprocessor = self._preprocessors.choose(turn.card.name, tried)
            if turn.preprocessor in tried:
                await asyncio.sleep(PAUSE_S)
            tried.append(turn.preprocessor)
            try:
                return await self._preprocessors.prepare(turn)
            except (TimedOut, Unavailable) as refusal:
                self._supersede(turn)
                self._log.warning("frontend.attempt_failed", turn=turn.id, preprocessor=tried[-1], error=str(refusal))
                if len(tried) >= self._config.attempts or self._turns.get(turn.id) is not turn:
                    raise

    def _supersede(self, turn: Turn) -> None:
        """The present attempt is over, whoever may still work for it."""
        self._publish_cancel(turn, "superseded")
        turn.attempt += 1
        turn.streaming = False

    def _go_on(self, turn: Turn, error: ErrorInfo) -> None:
        """The turn is asked for again. The client hears of `error` if that does not help."""
        turn.interruptions += 1
        if turn.interruptions >= self._config.attempts:
            self._fail(turn, error)
            return

        async def attempt() -> None:
            try:
                await self._attempt(turn)
            except TurnwireError as refusal:
                self._log.warning("frontend.resume_failed", turn=turn.id, error=str(refusal))
                self._fail(turn, error)

        turn.work = self._process.spawn(attempt(), f"resume {turn.id}")

    def _interrupted(self, turn: Turn, lost: Interrupted) -> None:
        """The worker died in mid-turn: another one goes on behind its tokens."""
        self._log.warning("frontend.interrupted", turn=turn.id, worker=lost.worker, tokens=len(lost.token_ids) // 4)
        self._supersede(turn)
        if turn.cursor.place > (lost.block, lost.offset):
            # The shard that showed more is gone, too. What another worker decodes from here would not be the same.
            self._fail(turn, lost.error)
            return
        turn.resume = lost.token_ids
        turn.avoid = [*turn.avoid, lost.worker]
        self._go_on(turn, lost.error)

    def _lost(self, turn: Turn, reason: str) -> None:
        """Nobody has the turn's tokens any more. What has shown nothing yet can begin anew."""
        error = EngineFailed(reason).info
        self._supersede(turn)
        if turn.cursor.place == (0, 0):
            self._go_on(turn, error)
        else:
            self._fail(turn, error)

    def _fail(self, turn: Turn, error: ErrorInfo) -> None:
        if self._turns.get(turn.id) is turn:
            self._close(turn)
            turn.sink.push([Failed(error)])
            if turn.outcome is not None and not turn.outcome.done():
                turn.outcome.set_exception(raised(error))

    def _close(self, turn: Turn) -> None:
        if self._turns.get(turn.id) is turn:
            del self._turns[turn.id]
        if not self._turns:
            self._empty.set()

    def _cancel(self, turn: Turn, reason: CancelReason) -> None:
        if self._turns.get(turn.id) is not turn:
            return
        self._close(turn)
        self._publish_cancel(turn, reason)
        if turn.work is not None:
            turn.work.cancel()
        self._log.info("frontend.cancelled", turn=turn.id, reason=reason)

    def _publish_cancel(self, turn: Turn, reason: Any) -> None:
        self._note_told(turn.id)
        self._process.publish(subjects.cancel(turn.card.name), Cancel(turn.id, turn.attempt, reason))

    # -- what comes over the bus ------------------------------------------------------------------------------------

    def _frame(self, message: Message) -> None:
        frame = _decode_frame(message.data)
        if not frame.seq:
            for entry in frame.entries:
                self._refused(entry)
            message.reply(b"")
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
                    turn.sink.push(entry.events)
                else:
                    self._take(turn, sender, entry)
            except Exception:
                # One turn's trouble must not become its neighbours'.
                self._log.exception("frontend.turn_failed", turn=turn.id)
                self._supersede(turn)
                self._fail(turn, EngineFailed("internal error").info)
        self._receiver.arrived(sender, frame.seq, len(message.data))

    def _refused(self, entry: EventEntry) -> None:
        """A preprocessor's word that it could not give the turn to a worker."""
        turn = self._turns.get(entry.turn)
        if turn is None or turn.attempt != entry.attempt or turn.outcome is None or turn.outcome.done():
            return
        for event in entry.events:
            if isinstance(event, Failed):
                turn.outcome.set_exception(raised(event.error))
                return

    def _take(self, turn: Turn, sender: str, entry: EventEntry) -> None:
        """A parser's events of the present attempt. The first of them says that the turn is prepared."""
        fresh: list[TurnEvent] = []
        for event in entry.events:
            if isinstance(event, Prepared):
                self._begin(turn, event)
                continue
            if not turn.streaming:
                self._receiver.gap(sender, Cursor().standing(turn.id, entry.attempt))
                break
            taken = turn.cursor.accept(event)
            if taken is Verdict.GAP:
                self._receiver.gap(sender, turn.cursor.standing(turn.id, entry.attempt))
                break
            if isinstance(taken, Interrupted):
                self._interrupted(turn, taken)
                break
            if not isinstance(taken, Verdict):
                fresh.append(taken)
        if fresh:
            turn.parser = sender
            if isinstance(fresh[-1], Finish | Failed):
                self._close(turn)
            turn.sink.push(fresh)

    def _begin(self, turn: Turn, prepared: Prepared) -> None:
        turn.worker, turn.parser = prepared.worker, prepared.parser
        now, registry = asyncio.get_running_loop().time(), self._process.registry
        registry.expect("worker", turn.worker, now)
        registry.expect("parser", turn.parser, now)
        if turn.outcome is not None and not turn.outcome.done():
            turn.streaming = True
            turn.outcome.set_result(prepared)
            if not turn.interruptions:
                turn.sink.opened(prepared)

    def _stray(self, entry: EventEntry, turn: Turn | None) -> None:
        """Events that nobody waits for: the word that the attempt is over was lost on the way, and is said again."""
        now = asyncio.get_running_loop().time()
        if now - self._strays.get(entry.turn, -TELL_AGAIN_S) < TELL_AGAIN_S or (turn and entry.attempt > turn.attempt):
            return
        if any(isinstance(event, Finish | Failed) for event in entry.events):
            return
        self._note_told(entry.turn)
        for model in [turn.card.name] if turn else [card.name for card in self.models()]:
            self._process.publish(subjects.cancel(model), Cancel(entry.turn, entry.attempt, "superseded"))

    def _note_told(self, turn: str) -> None:
        self._strays[turn] = asyncio.get_running_loop().time()
        while len(self._strays) > MAX_STRAYS:
            self._strays.popitem(last=False)

    def _standings(self, parser: str) -> list[Standing]:
        return [
            turn.cursor.standing(turn.id, turn.attempt)
            for turn in self._turns.values()
            if turn.parser == parser and turn.streaming
        ]

    def _given_up(self, parser: str) -> None:
        """A parser took this frontend for dead, and forgot its turns."""
        for turn in list(self._turns.values()):
            if turn.parser == parser and turn.streaming:
                self._lost(turn, "this server was cut off from the turn")

    def _peer_left(self, beat: Beat) -> None:
        for turn in list(self._turns.values()):
            if beat.stage == "preprocessor" and turn.preprocessor == beat.id:
                if turn.outcome is not None and not turn.outcome.done():
                    turn.outcome.set_exception(Unavailable("the preprocessor was lost"))
            elif beat.id == (turn.parser if beat.stage == "parser" else turn.worker) and turn.streaming:
                delay = self._config.bus.dead_after_s + RESCUE_S
                asyncio.get_running_loop().call_later(delay, self._not_rescued, turn, turn.attempt, beat)

    def _not_rescued(self, turn: Turn, attempt: int, beat: Beat) -> None:
        """A worker gives the turns of a dead shard to another, a shard hands back those of a dead worker. If neither
        happened, both are gone."""
        if self._turns.get(turn.id) is not turn or turn.attempt != attempt or not turn.streaming:
            return
        still = turn.parser if beat.stage == "parser" else turn.worker
        if still == beat.id and self._process.registry.get(beat.stage, beat.id) is None:
            self._lost(turn, "the worker and the parser of this turn were lost")


def _is_next(events: list[TurnEvent], turn: Turn) -> bool:
    """Whether this is what as a rule it is, the turn's next delta and nothing else; the cursor is then behind it."""
    return (
        len(events) == 1
        and type(event := events[0]) is Delta
        and turn.streaming
        and event.offset == turn.cursor.length
        and turn.cursor.accept(event) is event
    )
