"""The pipeline as the frontend's routes see it: turns opened over the bus, their events put together again.

One turn may take several attempts. A preprocessor that does not take it, or dies with it, is replaced by another; a
worker that dies in mid-turn hands back its tokens, and the turn goes on behind them on another worker. The client sees
one stream: what an attempt says again is dropped by the turn's cursor.
"""

import asyncio
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from schemas import subjects
from schemas.control import Beat, Cancel, ModelCard, Standing
from schemas.conversation import Conversation
from schemas.errors import EngineFailed, ErrorInfo, NotFound, TimedOut, TurnwireError, Unavailable, raised
from schemas.events import Failed, Finish, Interrupted, Prepared, TurnEvent
from schemas.frames import (
    CountRequest,
    DetokenizeRequest,
    EventEntry,
    EventFrame,
    TextReply,
    TokenizeRequest,
    TurnRequest,
    pack_ids,
)
from services.frontend.turns import CancelReason, TurnSink
from services.runtime.bus import Message
from services.runtime.config import FrontendConfig
from services.runtime.process import Process
from services.runtime.streams import FrameReceiver
from services.runtime.turnlog import Cursor, Verdict

PREPARE_TIMEOUT_S = 60.0
"""A prompt that is not ready by then is tried elsewhere."""
TEXT_TIMEOUT_S = 10.0
RETRY_AFTER_S = 1.0
LATE_BEATS = 1.5
"""A process whose beat is so many intervals old is asked last."""
MAX_STRANGERS = 4096
ORPHAN_GRACE_S = 2.0
"""Beyond the time in which a worker notices that a parser died, its turns wait so long for another to take over."""

_decode_frame = msgspec.json.Decoder(EventFrame).decode
_decode_text = msgspec.json.Decoder(TextReply).decode
_encode = msgspec.json.Encoder().encode


class Turn:
    """One open turn (an `OpenTurn`)."""

    def __init__(
        self,
        turn_id: str,
        card: ModelCard,
        conversation: Conversation,
        sink: TurnSink,
        *,
        deadline: float,
        traceparent: str | None,
        cancel: "Callable[[Turn, CancelReason], None]",
    ) -> None:
        self.id = turn_id
        self.card = card
        self.conversation = conversation
        self.sink = sink
        self.deadline = deadline
        self.traceparent = traceparent
        self.prepared = Prepared(0, 0)
        self.attempt = 0
        self.resume = b""
        self.avoid: list[str] = []
        self.preprocessor = ""
        self.parser = ""
        self.worker = ""
        self.cursor = Cursor()
        self.interruption: ErrorInfo | None = None
        self.outcome: asyncio.Future[Prepared] | None = None
        """Of the attempt that is being prepared."""
        self.early: list[tuple[str, EventEntry]] = []
        """Events which overtook the `Prepared` of their attempt: they come from another process."""
        self._cancel = cancel

    def cancel(self, reason: CancelReason) -> None:
        """Stops the turn everywhere. Idempotent; after it nothing more is pushed."""
        self._cancel(self, reason)

    def request(self, frontend: str) -> TurnRequest:
        """What the newest attempt asks for."""
        return TurnRequest(
            turn=self.id,
            frontend=frontend,
            conversation=self.conversation,
            attempt=self.attempt,
            deadline=self.deadline,
            resume=self.resume,
            avoid=self.avoid,
            traceparent=self.traceparent,
        )


class Gateway:
    """A `TurnGateway` over the bus."""

    def __init__(self, process: Process, config: FrontendConfig) -> None:
        self._process = process
        self._config = config
        self._log = process.log
        self._turns: dict[str, Turn] = {}
        self._receiver = FrameReceiver(process, "parser", self._standings)
        self._strangers: OrderedDict[str, float] = OrderedDict()
        self._empty = asyncio.Event()
        self._empty.set()
        process.registry.on_leave(self._peer_left)

    async def start(self) -> None:
        """Subscribes; from now on turns can be opened."""
        await self._process.subscribe(subjects.events(self._process.id), self._frame)

    async def drain(self) -> None:
        """Returns when no turn is open."""
        await self._empty.wait()

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
        conversation = msgspec.structs.replace(conversation, model=card.name)
        deadline = time.time() + self._config.request_timeout_s
        turn = Turn(turn_id, card, conversation, sink, deadline=deadline, traceparent=traceparent, cancel=self._cancel)
        self._turns[turn_id] = turn
        self._empty.clear()
        try:
            if self._process.draining:
                raise Unavailable("this server is shutting down", retry_after_s=1.0)
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
        reply = await self._ask(subjects.count, card.name, CountRequest(conversation))
        return reply.count

    async def tokenize(
        self, model: str, text: str | None, conversation: Conversation | None, add_special_tokens: bool
    ) -> TextReply:
        """See `TurnGateway.tokenize`."""
        card = self.resolve(model)
        if conversation is not None:
            conversation = msgspec.structs.replace(conversation, model=card.name)
        request = TokenizeRequest(text, conversation, add_special_tokens)
        return await self._ask(subjects.tokenize, card.name, request)

    async def detokenize(self, model: str, token_ids: list[int]) -> TextReply:
        """See `TurnGateway.detokenize`."""
        card = self.resolve(model)
        return await self._ask(subjects.detokenize, card.name, DetokenizeRequest(pack_ids(token_ids)))

    def models(self) -> list[ModelCard]:
        """See `TurnGateway.models`: what a preprocessor describes and a worker can decode."""
        cards: dict[str, ModelCard] = {}
        for beat in self._process.registry.living("preprocessor"):
            for card in beat.models:
                cards.setdefault(card.name, card)
        served = []
        for card in cards.values():
            workers = [
                own for beat in self._process.registry.living("worker") for own in beat.models if own.name == card.name
            ]
            if not workers:
                continue
            lengths = [n for n in (card.max_model_len, max(own.max_model_len for own in workers)) if n]
            served.append(
                msgspec.structs.replace(
                    card,
                    max_model_len=min(lengths, default=0),
                    features=sorted(set.intersection(*(set(own.features) for own in workers))),
                    engine=workers[0].engine,
                )
            )
        return sorted(served, key=lambda card: card.name)

    def resolve(self, model: str) -> ModelCard:
        """See `TurnGateway.resolve`. A model whose processes are all gone is not found: nothing tells that it was."""
        cards = self.models()
        for card in cards:
            if model == card.name or model in card.aliases:
                return card
        if self._config.accept_any_model or not model:
            fallback = self._config.default_model or (cards[0].name if len(cards) == 1 else None)
            for card in cards:
                if fallback is not None and (fallback == card.name or fallback in card.aliases):
                    return card
        if not cards:
            raise Unavailable("no model is being served at the moment: the pipeline is starting, or a stage is down")
        raise NotFound(f"model: {model}")

    def readiness(self) -> dict[str, Any]:
        """See `TurnGateway.readiness`."""
        registry = self._process.registry
        stages = {
            stage: [
                {"id": beat.id, "draining": beat.draining, "running": beat.load.running, "slots": beat.load.slots}
                for beat in registry.living(stage)
            ]
            for stage in ("preprocessor", "worker", "parser")
        }
        ready_models = [
            card.name
            for card in self.models()
            if all(registry.able(stage, card.name) for stage in ("preprocessor", "worker", "parser"))
        ]
        bus = self._process.bus.connected
        return {
            "ready": bus and bool(ready_models) and not self._process.draining,
            "draining": self._process.draining,
            "bus": bus,
            "models": ready_models,
            "turns": len(self._turns),
            "stages": stages,
        }

    def live(self) -> bool:
        """See `TurnGateway.live`."""
        return self._process.failure is None

    # -- attempts ---------------------------------------------------------------------------------------------------

    async def _attempt(self, turn: Turn) -> Prepared:
        """Asks preprocessors until one has given the turn to a worker."""
        refusal: TurnwireError = EngineFailed("no attempt was made")
        tried: list[str] = []
        for _ in range(self._config.attempts):
            if self._turns.get(turn.id) is not turn:
                raise EngineFailed("the turn was cancelled")
            turn.attempt += 1
            turn.early.clear()
            turn.preprocessor = self._preprocessor(turn.card.name, tried)
            tried.append(turn.preprocessor)
            turn.outcome = asyncio.get_running_loop().create_future()
            try:
                await self._process.bus.request(
                    subjects.turn(turn.card.name, turn.preprocessor),
                    _encode(turn.request(self._process.id)),
                    self._config.accept_timeout_s,
                )
                async with asyncio.timeout(PREPARE_TIMEOUT_S):
                    return await turn.outcome
            except _Retry as lost:
                refusal = EngineFailed(str(lost))
            except (TimedOut, Unavailable) as late:
                refusal = late
            except TimeoutError:
                refusal = TimedOut(f"the prompt was not ready within {PREPARE_TIMEOUT_S:g} s")
            finally:
                turn.outcome = None
            self._log.warning("frontend.attempt_failed", turn=turn.id, attempt=turn.attempt, error=str(refusal))
            self._publish_cancel(turn, "superseded")
        raise refusal

    async def _resume(self, turn: Turn, lost: Interrupted) -> None:
        """The worker died in mid-turn: another one goes on behind its tokens."""
        turn.resume = lost.token_ids
        turn.avoid = [*turn.avoid, lost.worker]
        turn.interruption = lost.error
        self._log.warning("frontend.resuming", turn=turn.id, worker=lost.worker, tokens=len(lost.token_ids) // 4)
        if len(turn.avoid) >= self._config.attempts:
            self._fail(turn, lost.error)
            return
        try:
            prepared = await self._attempt(turn)
        except TurnwireError as error:
            self._log.warning("frontend.resume_failed", turn=turn.id, error=str(error))
            self._fail(turn, lost.error)
            return
        turn.worker, turn.parser = prepared.worker, prepared.parser
        if self._turns.get(turn.id) is not turn:
            self._publish_cancel(turn, "hangup")

    def _fail(self, turn: Turn, error: ErrorInfo) -> None:
        if turn.id in self._turns:
            self._close(turn)
            turn.sink.push([Failed(error)])

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
        self._log.info("frontend.cancelled", turn=turn.id, reason=reason)

    def _publish_cancel(self, turn: Turn, reason: Any) -> None:
        self._process.publish(subjects.cancel(turn.card.name), Cancel(turn.id, turn.attempt, reason))

    def _preprocessor(self, model: str, tried: Sequence[str]) -> str:
        """The one with the least to do of those who were heard of lately and not tried yet.

        Raises:
            Unavailable: there is none at all.
        """
        registry = self._process.registry
        beats = registry.able("preprocessor", model)
        if not beats:
            raise Unavailable("no preprocessor serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        now = asyncio.get_running_loop().time()
        late = LATE_BEATS * self._config.bus.beat_interval_s
        open_turns = Counter(turn.preprocessor for turn in self._turns.values() if turn.outcome is not None)
        return min(
            beats,
            key=lambda beat: (
                beat.id in tried,
                registry.age("preprocessor", beat.id, now) > late,
                open_turns[beat.id],
                random.random(),
            ),
        ).id

    async def _ask(self, subject: Callable[[str, str], str], model: str, request: msgspec.Struct) -> TextReply:
        data = _encode(request)
        tried: list[str] = []
        while True:
            tried.append(self._preprocessor(model, tried))
            try:
                answer = await self._process.bus.request(subject(model, tried[-1]), data, TEXT_TIMEOUT_S)
                break
            except (TimedOut, Unavailable):
                if len(tried) >= self._config.attempts:
                    raise
        reply = _decode_text(answer)
        if reply.error is not None:
            raise raised(reply.error)
        return reply

    # -- what comes over the bus ------------------------------------------------------------------------------------

    def _frame(self, message: Message) -> None:
        frame = _decode_frame(message.data)
        for entry in frame.entries:
            turn = self._turns.get(entry.turn)
            if turn is None:
                self._stranger(entry)
            elif entry.attempt == turn.attempt:
                self._take(turn, frame.sender, entry)
        if frame.seq:  # a preprocessor's frames are not numbered: what of them is lost is asked for anew
            self._receiver.arrived(frame.sender, frame.seq, len(message.data))

    def _take(self, turn: Turn, sender: str, entry: EventEntry) -> None:
        if turn.outcome is None or turn.outcome.done():
            self._events(turn, sender, entry)
            return
        first = entry.events[0]
        if isinstance(first, Prepared):
            turn.worker, turn.parser = first.worker, first.parser
            turn.outcome.set_result(first)
            early, turn.early = turn.early, []
            for earlier in early:
                self._events(turn, *earlier)
        elif isinstance(first, Failed) and not turn.early:
            turn.outcome.set_exception(raised(first.error))
        else:
            turn.early.append((sender, entry))

    def _events(self, turn: Turn, sender: str, entry: EventEntry) -> None:
        fresh: list[TurnEvent] = []
        for event in entry.events:
            if isinstance(event, Prepared):
                continue  # said twice
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

    def _interrupted(self, turn: Turn, lost: Interrupted) -> None:
        turn.attempt += 1  # from here on the old attempt's events are nobody's
        self._process.spawn(self._resume(turn, lost), f"resume {turn.id}")

    def _stranger(self, entry: EventEntry) -> None:
        """Events of a turn that is not here: its cancellation was lost on the way. Said again, once."""
        if entry.turn in self._strangers or any(isinstance(e, Finish | Failed) for e in entry.events):
            return
        self._strangers[entry.turn] = 0.0
        while len(self._strangers) > MAX_STRANGERS:
            self._strangers.popitem(last=False)
        for card in self.models():
            self._process.publish(subjects.cancel(card.name), Cancel(entry.turn, entry.attempt, "hangup"))

    def _standings(self, parser: str) -> list[Standing]:
        return [turn.cursor.standing(turn.id, turn.attempt) for turn in self._turns.values() if turn.parser == parser]

    def _peer_left(self, beat: Beat) -> None:
        for turn in list(self._turns.values()):
            if beat.stage == "preprocessor" and turn.preprocessor == beat.id and turn.outcome is not None:
                if not turn.outcome.done():
                    turn.outcome.set_exception(_Retry("the preprocessor was lost"))
            elif beat.stage == "parser" and turn.parser == beat.id:
                self._process.spawn(self._await_heir(turn, beat.id), f"await heir {turn.id}")

    async def _await_heir(self, turn: Turn, parser: str) -> None:
        """A worker gives the turns of a dead shard to another. Where none does (it died too), the turn has failed."""
        await asyncio.sleep(self._config.bus.dead_after_s + ORPHAN_GRACE_S)
        if self._turns.get(turn.id) is turn and turn.parser == parser:
            self._fail(turn, EngineFailed("the parser of this turn was lost, and its worker too").info)


class _Retry(Exception):
    """This attempt is lost through no fault of the request."""
