"""Joins the events of each turn's attempts into one stream.

A turn's cursor drops what an earlier attempt has sent, and finds gaps, which are requested again.
Events with the number of a superseded attempt are ignored.
"""

import asyncio

import msgspec

from schemas import subjects
from schemas.control import StreamPosition
from schemas.errors import EngineFailed, raised
from schemas.events import (
    Delta,
    Failed,
    HostedResults,
    Interrupted,
    LastEvent,
    Prepared,
    TurnEvent,
)
from schemas.frames import NO_STREAM, EventEntry, EventFrame
from services.frontend.gateway.attempts import TurnAttempts
from services.frontend.gateway.prompt_origins import PromptOrigins
from services.frontend.gateway.turn_state import BusTurn, Preparing, StateEvent, Streaming
from services.frontend.gateway.turn_table import TurnTable
from services.frontend.models.catalog import ModelCatalog
from services.runtime.nats.bus import Delivery
from services.runtime.process import Process
from services.runtime.streams.cursor import Cursor, Verdict
from services.runtime.streams.frames import FrameReceiver

_decode_frame = msgspec.json.Decoder(EventFrame).decode


class EventReceiver:
    """Applies the event frames of parsers, and refusals, to the open turns."""

    def __init__(
        self,
        process: Process,
        catalog: ModelCatalog,
        prompts: PromptOrigins,
        table: TurnTable,
        attempts: TurnAttempts,
    ) -> None:
        self._process = process
        self._catalog = catalog
        self._prompts = prompts
        self._table = table
        self._attempts = attempts
        self._receiver = FrameReceiver(
            process, "parser", self._positions, on_given_up=self._on_given_up
        )

    async def start(self) -> None:
        """Subscribes to events."""
        await self._process.subscribe(subjects.events(self._process.id), self._on_frame)

    def _on_frame(self, delivery: Delivery) -> None:
        frame = _decode_frame(delivery.data)
        if frame.seq == NO_STREAM:
            self._on_refusal(frame, delivery)
            return
        sender = frame.sender
        if not self._receiver.opens(sender, frame.seq):
            return
        by_id = self._table.by_id
        for entry in frame.entries:
            turn = by_id.get(entry.turn)
            if turn is None or entry.attempt != turn.attempt.number:
                self._on_stray(entry, turn)
                continue
            try:
                if not _push_next_delta(turn, sender, entry):
                    self._on_entry(turn, sender, entry)
            except Exception:  # one turn's failure must not affect the other turns of the frame
                turn.observer.failed()
                self._table.abandon(turn, "internal", EngineFailed("internal error").info)
        self._receiver.arrived(sender, frame.seq, len(delivery.data))

    def _on_refusal(self, frame: EventFrame, delivery: Delivery) -> None:
        """Applies a frame that is in no stream. A probe has no entries: it only has to arrive."""
        for entry in frame.entries:
            self._on_refused(entry)
        if frame.entries:
            delivery.reply(b"")

    def _on_refused(self, entry: EventEntry) -> None:
        """Fails the attempt: a preprocessor could not pass the turn to a worker, or a parser could
        not read its context, which the worker reports."""
        turn = self._table.by_id.get(entry.turn)
        if turn is None or turn.attempt.number != entry.attempt:
            return
        for event in entry.events:
            if isinstance(event, Failed):
                turn.fail_attempt(turn.attempt, StateEvent.REFUSED, raised(event.error))

    def _on_entry(self, turn: BusTurn, sender: str, entry: EventEntry) -> None:
        """Applies a parser's events of the current attempt. The first event of an attempt is
        `Prepared`."""
        new: list[TurnEvent] = []
        interrupted: Interrupted | None = None
        for event in entry.events:
            if isinstance(event, Prepared):
                self._on_prepared(turn, event)
                continue
            if isinstance(event, HostedResults):
                continue  # the frontend makes these; they are not sent on the bus
            state = turn.state
            if not isinstance(state, Streaming):
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
                state.parser = sender
                new.append(accepted)
        if new:
            self._table.push(turn, new, entry.tokens)
        if interrupted is not None:
            self._attempts.continue_elsewhere(turn, interrupted)

    def _on_prepared(self, turn: BusTurn, prepared: Prepared) -> None:
        """Records which parser has the turn's stream: the first of this attempt, or the successor
        of a lost one."""
        turn.observer.prepared(prepared)
        now = asyncio.get_running_loop().time()
        registry = self._process.registry
        registry.expect_heartbeats("worker", prepared.worker, now)
        registry.expect_heartbeats("parser", prepared.parser, now)
        is_compared = turn.conversation.client.compare is not None
        if is_compared and isinstance(turn.state, Preparing):
            prepared = self._prompts.note(turn, prepared)
        if turn.moved_to:
            prepared = msgspec.structs.replace(prepared, model=turn.moved_to)
        turn.apply_prepared(prepared)

    def _on_stray(self, entry: EventEntry, turn: BusTurn | None) -> None:
        """Cancels again an attempt that still sends events: the first cancellation was lost."""
        is_newer = turn is not None and entry.attempt > turn.attempt.number
        if is_newer or self._table.was_just_cancelled(entry.turn):
            return
        if any(isinstance(event, LastEvent) for event in entry.events):
            return
        models = list({card.name for card in self._catalog.models()})
        if turn is not None:
            models = [turn.card.name]
        for model in models:
            self._table.publish_cancel(model, entry.turn, entry.attempt, "superseded")

    def _positions(self, parser: str) -> list[StreamPosition]:
        return [turn.position() for turn in self._table.of_parser(parser)]

    def _on_given_up(self, parser: str) -> None:
        """Ends the turns of a parser that considered this frontend dead and dropped them."""
        for turn in self._table.of_parser(parser):
            self._attempts.restart_or_fail(turn, "this server was cut off from the turn")


def _push_next_delta(turn: BusTurn, sender: str, entry: EventEntry) -> bool:
    """Passes the turn's next delta to the sink, if it is alone in an entry: the common case, once a
    token, in which the table and the observer have nothing to do. Returns whether it was."""
    state = turn.state
    if type(state) is not Streaming or len(entry.events) != 1:
        return False
    event = entry.events[0]
    if type(event) is not Delta or event.offset != turn.cursor.length:
        return False
    if turn.cursor.accept(event) is not event:
        return False
    state.parser = sender
    turn.sink.push(entry.events, entry.tokens)
    return True
