"""Opens turns over the bus, and joins the events of their attempts into one stream.

One turn may take several attempts (`turn_state`). If a preprocessor refuses it or dies, another one
gets it. If a worker dies in mid-turn, its parser hands back the tokens, and another worker
continues after them. The turn's cursor drops what an earlier attempt has sent. A superseded attempt
is cancelled, and events with its number are ignored. Where no process can take a turn, it waits for
one: up to `recovery_s` if it is in progress, up to `wait_s` if it is new.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec
from typing_extensions import override

from schemas import subjects
from schemas.control import VISION, Cancel, Heartbeat, StreamPosition
from schemas.errors import (
    DEADLINE_PASSED,
    MEDIA_MISSING,
    RETRY_AFTER_S,
    EngineFailed,
    ErrorInfo,
    TimedOut,
    TurnwireError,
    Unavailable,
    raised,
)
from schemas.events import Delta, Failed, Finish, HostedResults, Interrupted, Prepared, TurnEvent
from schemas.frames import EventEntry, EventFrame
from schemas.session import tenant_key
from services.frontend.media.image import without_images
from services.frontend.turns.catalog import ModelCatalog
from services.frontend.turns.interfaces import Admitted, CancelReason, TurnGateway, TurnSink
from services.frontend.turns.preprocessor_client import PreprocessorClient, unreachable
from services.frontend.turns.process_watch import BOTH_LOST, RESCUE_S, ProcessWatch
from services.frontend.turns.prompt_origins import PromptOrigins
from services.frontend.turns.turn_span import TurnSpan
from services.frontend.turns.turn_state import Attempt, BusTurn, Event, State
from services.runtime.bus import Delivery
from services.runtime.config import FrontendConfig
from services.runtime.process import Process
from services.runtime.recent_turns import RecentTurns
from services.runtime.streams.frames import FrameReceiver
from services.runtime.streams.turn_log import Cursor, Verdict

FLUSH_S = 0.5
CANCEL_AGAIN_S = 1.0
"""How often the cancellation of a turn that still sends events is repeated."""

_decode_frame = msgspec.json.Decoder(EventFrame).decode


class BusGateway(TurnGateway):
    """The open turns of this frontend."""

    def __init__(
        self,
        process: Process,
        config: FrontendConfig,
        catalog: ModelCatalog,
        preprocessors: PreprocessorClient,
    ) -> None:
        self._process = process
        self._config = config
        self._log = process.log
        self._catalog = catalog
        self._preprocessors = preprocessors
        clock = asyncio.get_running_loop().time
        self.prompts = PromptOrigins(
            lambda notice: process.publish(subjects.frontends(), notice), clock
        )
        self._turns: dict[str, BusTurn] = {}
        self._receiver = FrameReceiver(
            process, "parser", self._positions, on_given_up=self._on_given_up
        )
        self._just_cancelled = RecentTurns(CANCEL_AGAIN_S)
        self._empty = asyncio.Event()
        self._empty.set()
        process.registry.on_leave(self._on_peer_left)
        ProcessWatch(
            process, self._turns.values, on_lost=self._on_tokens_lost, on_late=self._on_no_successor
        )
        process.on_reconnect.append(self._on_reconnect)

    async def start(self) -> None:
        """Subscribes to events. Turns can be opened afterwards."""
        await self._process.subscribe(subjects.events(self._process.id), self._receive)

    async def drain(self) -> None:
        """Returns when no turn is open. If cancelled, ends the open turns, each with an error."""
        try:
            await self._empty.wait()
        except asyncio.CancelledError:
            for turn in list(self._turns.values()):
                error = Unavailable("this server was shut down", retry_after_s=RETRY_AFTER_S)
                self._abandon(turn, "shut down", error.info)
            raise

    @property
    def running(self) -> int:
        """The number of open turns."""
        return len(self._turns)

    @override
    async def open(self, admitted: Admitted, sink: TurnSink, *, turn_id: str) -> BusTurn:
        if self._process.draining and not admitted.continues:
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        now = asyncio.get_running_loop().time()
        turn = BusTurn(
            turn_id,
            admitted.card,
            admitted.conversation,
            sink,
            now + self._config.request_timeout_s,
            self._on_cancel,
            now + self._config.wait_s,
            admitted.images,
        )
        if self._process.tracer is not None:
            turn.span = TurnSpan.open(self._process.tracer, turn_id, turn.conversation)
        self._turns[turn_id] = turn
        self._empty.clear()
        try:
            if turn.conversation.client.compare and self.prompts.find(turn.conversation) is None:
                await self._process.bus.flush(
                    FLUSH_S
                )  # another frontend's notice may be on its way
            turn.compared = self.prompts.find(turn.conversation)
            turn.prepared = await self._attempt(turn)
            turn.images = None
        except asyncio.CancelledError:
            self._on_cancel(turn, "hangup")
            raise
        except TurnwireError as error:
            self._end(turn, Event.GIVEN_UP, error=error.info)
            raise
        return turn

    # -- attempts
    # -------------------------------------------------------------------------------------------------

    async def _attempt(self, turn: BusTurn) -> Prepared:
        """Sends the turn to preprocessors, one after the other, until a worker has it.

        Raises:
            Unavailable: no process could take the turn until its `wait_until`, or too many attempts
                were lost.
            TurnwireError: the turn was refused, or ended with this error.
        """
        tried: list[str] = []
        while True:
            self._move(turn)
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as turn.waiting:
                    patient = turn.state is State.RESUMING
                    prefer = self._preferred(turn)
                    choose = partial(
                        self._preprocessors.next, turn.card.name, tried, turn.wait_until
                    )
                    tried.append(await choose(patient=patient, prefer=prefer))
            turn.waiting = None
            if turn.error is not None:
                raise raised(turn.error)
            turn.attempt.preprocessor = tried[-1]
            try:
                return await self._preprocessors.prepare(turn)
            except (TimedOut, Unavailable) as refusal:
                # rare: a preprocessor refuses an attempt, or does not answer
                self._supersede(turn, str(refusal.info.kind))
                self._log.warning(
                    "frontend.attempt_failed",
                    turn=turn.id,
                    preprocessor=tried[-1],
                    error=str(refusal),
                )
                if turn.state is State.ENDED or turn.failures >= self._config.attempts:
                    raise
                if refusal.info.code == DEADLINE_PASSED:
                    raise
                if refusal.info.code == MEDIA_MISSING:
                    # rare: the bucket does not have an image any more
                    images, turn.images = turn.images, None
                    if images is None:
                        raise
                    await images.store()
                    tried.clear()
                if asyncio.get_running_loop().time() >= turn.wait_until:
                    raise unreachable() from refusal

    def _preferred(self, turn: BusTurn) -> str:
        """Returns the preprocessor that knows the prompt that this one is compared with, or else
        the one that the helpers of the same agent share: their prompts begin alike, and there the
        second waits for the first."""
        if turn.compared is not None:
            return turn.compared.preprocessor
        if (parent := turn.conversation.client.parent) is None:
            return ""
        return self._preprocessors.shared(turn.card.name, tenant_key(turn.conversation, parent))

    def _move(self, turn: BusTurn) -> None:
        """Moves a waiting turn to another model with the same alias, if its own model takes no
        turns any more."""
        alias = turn.conversation.client.alias
        if (
            alias is not None
            and turn.state is State.WAITING
            and not self._catalog.takes_turns(turn.card.name)
        ):
            turn.card = self._catalog.resolve(alias, turn.conversation)
            turn.conversation = msgspec.structs.replace(turn.conversation, model=turn.card.name)
            if VISION not in turn.card.features:
                turn.conversation = without_images(turn.conversation)

    def _supersede(self, turn: BusTurn, reason: str) -> None:
        """Cancels the current attempt in all processes, and starts the next one. `reason`: for the
        turn's trace."""
        number = turn.attempt.number
        self._publish_cancel(turn.card.name, turn.id, number, "superseded")
        if turn.span is not None:
            turn.span.end_attempt(number, reason)
        turn.attempt = Attempt(number + 1)

    def _resume(self, turn: BusTurn, error: ErrorInfo) -> None:
        """Continues the turn with another attempt. If that fails, the client gets `error`."""
        turn.failures += 1
        if turn.failures >= self._config.attempts:
            self._fail(turn, error)
            return
        turn.wait_until = asyncio.get_running_loop().time() + self._config.bus.recovery_s

        async def resume() -> None:
            try:
                await self._attempt(turn)
            except TurnwireError as refusal:
                self._log.warning("frontend.resume_failed", turn=turn.id, error=str(refusal))
                recovery = f"it could not be continued within {self._config.bus.recovery_s:g} s"
                late = asyncio.get_running_loop().time() >= turn.wait_until
                message = (
                    f"{error.message}; {recovery}: {refusal}"
                    if late
                    else f"{error.message}; {refusal}"
                )
                self._fail(turn, msgspec.structs.replace(error, message=message))

        turn.resuming = self._process.spawn(resume(), f"resume {turn.id}")

    # -- ends
    # -----------------------------------------------------------------------------------------------------

    def _push(
        self,
        turn: BusTurn,
        events: list[TurnEvent],
        tokens: int = 0,
        *,
        end: Event = Event.FINISHED,
    ) -> None:
        """Passes events to the sink. A terminal event ends the turn, so only one is ever sent."""
        if turn.span is not None:
            turn.span.take(events)
        if isinstance(events[-1], Finish | Failed):
            self._end(turn, end)
        turn.sink.push(events, tokens)

    def _fail(self, turn: BusTurn, error: ErrorInfo, event: Event = Event.GIVEN_UP) -> None:
        if turn.state is not State.ENDED:
            self._push(turn, [Failed(error)], end=event)

    def _abandon(
        self, turn: BusTurn, reason: str, error: ErrorInfo, event: Event = Event.GIVEN_UP
    ) -> None:
        """Cancels the current attempt and ends the turn with an error."""
        attempt = turn.attempt
        self._supersede(turn, reason)
        self._fail(turn, error, event)
        turn.error = error
        if turn.waiting is not None:
            turn.waiting.reschedule(0.0)
        attempt.fail(raised(error))

    def _end(
        self,
        turn: BusTurn,
        event: Event,
        *,
        error: ErrorInfo | None = None,
        cancelled: CancelReason | None = None,
    ) -> bool:
        """Applies an event that ends the turn. Returns False if the turn had already ended."""
        if not turn.take(event):
            return False
        del self._turns[turn.id]
        if turn.span is not None:
            turn.span.end(error, cancelled)
        if not self._turns:
            self._empty.set()
        return True

    def _on_cancel(self, turn: BusTurn, reason: CancelReason) -> None:
        if self._end(turn, Event.CANCELLED, cancelled=reason):
            self._publish_cancel(turn.card.name, turn.id, turn.attempt.number, reason)
            if turn.resuming is not None:
                turn.resuming.cancel()
            self._log.info("frontend.cancelled", turn=turn.id, reason=reason)

    def _publish_cancel(
        self, model: str, turn: str, attempt: int, reason: CancelReason | Literal["superseded"]
    ) -> None:
        self._just_cancelled.note(turn, attempt)
        self._process.publish(subjects.cancel(model), Cancel(turn, attempt, reason))

    # -- events
    # ---------------------------------------------------------------------------------------------------

    def _receive(self, delivery: Delivery) -> None:
        frame = _decode_frame(delivery.data)
        if not frame.seq:
            for entry in frame.entries:
                self._on_refused(entry)
            if frame.entries:  # a frame without entries is a probe, which needs no reply
                delivery.reply(b"")
            return
        if not self._receiver.opens(frame.sender, frame.seq):
            return
        turns, sender = self._turns, frame.sender
        for entry in frame.entries:
            turn = turns.get(entry.turn)
            if turn is None or entry.attempt != turn.attempt.number:
                self._on_stray(entry, turn)
                continue
            try:
                if _is_next(entry.events, turn):
                    turn.attempt.parser = sender
                    turn.sink.push(entry.events, entry.tokens)
                else:
                    self._on_entry(turn, sender, entry)
            except Exception:  # one turn's failure must not affect the other turns of the frame
                self._log.exception("frontend.turn_failed", turn=turn.id)
                self._abandon(turn, "internal", EngineFailed("internal error").info)
        self._receiver.arrived(sender, frame.seq, len(delivery.data))

    def _on_refused(self, entry: EventEntry) -> None:
        """Fails the attempt: a preprocessor could not pass the turn to a worker."""
        turn = self._turns.get(entry.turn)
        if turn is not None and turn.attempt.number == entry.attempt:
            for event in entry.events:
                if isinstance(event, Failed):
                    turn.take_failure(turn.attempt, Event.REFUSED, raised(event.error))

    def _on_entry(self, turn: BusTurn, sender: str, entry: EventEntry) -> None:
        """Applies a parser's events of the current attempt. The first event of an attempt is
        `Prepared`."""
        new: list[TurnEvent] = []
        interrupted: Interrupted | None = None
        for event in entry.events:
            if isinstance(event, Prepared):
                self._on_prepared(turn, event)
                continue
            if isinstance(
                event, HostedResults
            ):  # the frontend makes these; they are not sent on the bus
                continue
            if turn.state is not State.STREAMING:
                self._receiver.gap(sender, Cursor().position(turn.id, entry.attempt))
                break
            accepted = turn.cursor.accept(event)
            if accepted is Verdict.GAP:
                # rare: a parser continues after the position of the frontend
                self._receiver.gap(sender, turn.position())
                break
            if isinstance(accepted, Interrupted):
                interrupted = accepted
                break
            if not isinstance(accepted, Verdict):
                new.append(accepted)
        if new:
            turn.attempt.parser = sender
            self._push(turn, new, entry.tokens)
        if interrupted is not None:
            self._on_interrupted(turn, interrupted)

    def _on_prepared(self, turn: BusTurn, prepared: Prepared) -> None:
        """Records which parser has the turn's stream: the first of this attempt, or the successor
        of a lost one."""
        if turn.span is not None:
            turn.span.record_prepared(prepared)
        now, registry = asyncio.get_running_loop().time(), self._process.registry
        registry.expect("worker", prepared.worker, now)
        registry.expect("parser", prepared.parser, now)
        if turn.conversation.client.compare is not None and turn.state is State.PREPARING:
            prepared = self.prompts.note(turn, prepared)
        turn.take_prepared(prepared)

    def _on_interrupted(self, turn: BusTurn, lost: Interrupted) -> None:
        """Continues the turn on another worker, after the tokens of the one that died."""
        self._log.warning(
            "frontend.interrupted",
            turn=turn.id,
            worker=lost.worker,
            tokens=len(lost.token_ids) // 4,
        )
        if not turn.take(Event.INTERRUPTED):
            return
        # rare: a worker was lost in mid-turn, and its parser hands the tokens back
        self._supersede(turn, "worker lost")
        if (
            turn.cursor.place > (lost.block, lost.offset)
            or turn.cursor.tokens > len(lost.token_ids) // 4
        ):
            # rare: the client has more than any process still knows The parser that sent more than
            # this is lost, too. Another worker would decode other tokens from here on.
            self._fail(turn, msgspec.structs.replace(lost.error, message=BOTH_LOST))
            return
        if len(lost.token_ids) > len(turn.resume):
            turn.failures = 0  # the turn made progress, so it did not cause the failures
        turn.resume = lost.token_ids
        turn.avoid = [*turn.avoid, lost.worker]
        self._resume(turn, lost.error)

    def _on_stray(self, entry: EventEntry, turn: BusTurn | None) -> None:
        """Cancels again an attempt that still sends events: the first cancellation was lost."""
        if entry.turn in self._just_cancelled or (
            turn is not None and entry.attempt > turn.attempt.number
        ):
            return
        if any(isinstance(event, Finish | Failed) for event in entry.events):
            return
        for model in [turn.card.name] if turn else [card.name for card in self._catalog.models()]:
            self._publish_cancel(model, entry.turn, entry.attempt, "superseded")

    # -- peers
    # ----------------------------------------------------------------------------------------------------

    def _turns_of(self, parser: str) -> list[BusTurn]:
        streaming = [turn for turn in self._turns.values() if turn.state is State.STREAMING]
        return [turn for turn in streaming if turn.attempt.parser == parser]

    def _positions(self, parser: str) -> list[StreamPosition]:
        return [turn.position() for turn in self._turns_of(parser)]

    def _on_given_up(self, parser: str) -> None:
        """Ends the turns of a parser that considered this frontend dead and dropped them."""
        for turn in self._turns_of(parser):
            self._on_tokens_lost(turn, "this server was cut off from the turn")

    def _on_peer_left(self, peer: Heartbeat) -> None:
        wait_s = self._config.bus.dead_after_s + RESCUE_S
        for turn in list(self._turns.values()):
            attempt = turn.attempt
            if not attempt.is_pending:
                continue
            if peer.stage in ("worker", "parser"):
                # Which worker and parser have the turn is not known yet. If both are lost, no event
                # arrives.
                reason = f"a {peer.stage} was lost, and the turn did not begin"
                asyncio.get_running_loop().call_later(
                    wait_s, self._on_process_left, turn, attempt, reason
                )
            elif (peer.stage, peer.id) == ("preprocessor", attempt.preprocessor):
                self._on_process_left(turn, attempt, "the preprocessor was lost")

    def _on_process_left(self, turn: BusTurn, attempt: Attempt, reason: str) -> None:
        """Fails an attempt that is still being prepared, so that the next one is made."""
        if turn.take_failure(attempt, Event.PROCESS_LEFT, Unavailable(reason)):
            turn.failures += 1
            turn.wait_until = asyncio.get_running_loop().time() + self._config.bus.recovery_s

    def _on_reconnect(self) -> None:
        """Requests turns without a stream again: messages in flight are lost. The links replay
        streams."""
        for turn in list(self._turns.values()):
            error = Unavailable("the connection to the bus was lost")
            turn.take_failure(turn.attempt, Event.RECONNECTED, error)

    def _on_tokens_lost(self, turn: BusTurn, reason: str) -> None:
        """Restarts the turn if nothing was sent to the client yet; ends it otherwise. No process
        has its tokens."""
        if not turn.take(Event.TOKENS_LOST):
            return
        error = EngineFailed(reason).info
        self._supersede(turn, "tokens lost")
        if turn.cursor.place == (0, 0) and not turn.cursor.tokens:
            self._resume(turn, error)
        else:
            self._fail(turn, error)

    def _on_no_successor(self, turn: BusTurn, reason: str) -> None:
        """Ends a turn that no process took over in time."""
        self._abandon(turn, "no successor", EngineFailed(reason).info, Event.NO_SUCCESSOR)


def _is_next(events: list[TurnEvent], turn: BusTurn) -> bool:
    """Returns whether the events are the turn's next delta alone, the common case. Then moves the
    cursor past it."""
    return (
        len(events) == 1
        and type(event := events[0]) is Delta
        and turn.state is State.STREAMING
        and event.offset == turn.cursor.length
        and turn.cursor.accept(event) is event
    )
