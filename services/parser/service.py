"""The parser process, which turns token frames into event frames.

A token frame is handled without a break, and the events of all its turns are sent at the end of the
same tick, in one event frame per frontend. A turn stays here until its frontend has the last event,
so that lost frames can be replayed.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import time_ns

import msgspec
from tokenizers import Tokenizer
from typing_extensions import override

from schemas import subjects
from schemas.control import Cancel, Heartbeat, Load, ModelCard, Replay, StreamPosition
from schemas.errors import ENGINE_DIED, ErrorInfo, ErrorKind, as_turnwire_error
from schemas.events import FinishReason
from schemas.frames import EventFrame, TokenEntry, TokenFrame
from services.ledger.signer import EntrySigner
from services.parser.closed_turns import ClosedTurns
from services.parser.event_outbox import EventOutbox
from services.parser.ledger_writer import NO_LEDGER_WRITER, BusLedgerWriter, LedgerWriter
from services.parser.observer import ParserObserver
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.runtime.config.stages import ParserConfig
from services.runtime.nats.bus import Delivery
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.presence.heartbeats import LinkStates, Service
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket, ledger_bucket
from services.runtime.storage.seal import Sealer
from services.runtime.streams.frames import FrameReceiver, FrameSender, FrameSource
from services.runtime.streams.frontend_watch import FrontendWatch
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend

_FROM_PARSERS = ("stop_string", "calls", "failed", "unreadable")
"""Reasons of the cancels that parsers send. The worker's last tokens are still to arrive."""

_decode_frame = msgspec.json.Decoder(TokenFrame).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode


class Parser(Service, FrameSource):
    """Connects one shard to the bus."""

    def __init__(
        self,
        process: Process,
        shard: Shard,
        model: str,
        ledger: LedgerWriter = NO_LEDGER_WRITER,
    ) -> None:
        self._process = process
        self._ledger = ledger
        self._shard = shard
        self._model = model
        self._receiver = FrameReceiver(
            process, "worker", shard.positions, on_given_up=self._given_up
        )
        self._observer = ParserObserver(process)
        self._outbox = EventOutbox(process, self._observer)
        self._sender = FrameSender(process, "frontend", self)
        self._closed = ClosedTurns(process, model)
        self._turn_removed = asyncio.Event()
        self.models = [ModelCard(name=model)]
        process.registry.on_leave.append(self._peer_left)
        self._frontend_watch = FrontendWatch(process, self._frontend_gone)

    # -- one tick: from a frame of tokens to frames of events

    def _on_frame(self, delivery: Delivery) -> None:
        """Takes a worker's `TokenFrame`: the tokens of its turns become events. They are sent at
        the end of this tick, in one `EventFrame` per frontend (`EventOutbox.fill`)."""
        frame = _decode_frame(delivery.data)
        if not self._receiver.opens(frame.sender, frame.seq):
            return

        turns = self._shard.turns
        parsed: list[TurnParse] = []
        try:
            for entry in frame.entries:
                try:
                    parse = turns.get(entry.turn)
                    if parse is None or not parse.fast.append(entry):
                        parse = self._parse_entry(entry, frame.sender)
                except Exception as error:
                    # One turn's failure (an unknown family in its context, a defect) must not
                    # affect other turns, nor stop the link.
                    parse = self._fail(entry, frame.sender, error)
                if parse is not None:
                    parsed.append(parse)
        finally:
            self._send_soon(parsed)
        self._receiver.arrived(frame.sender, frame.seq, len(delivery.data))

    def _parse_entry(self, entry: TokenEntry, worker: str) -> TurnParse | None:
        """Parses an entry that the fast path does not take. Returns its turn if there are new
        events."""
        if self._closed.has(entry.turn, entry.attempt):
            if entry.finish is None:
                self._closed.cancel_again(entry.turn)
            return None

        arrived_ns = time_ns()
        outcome = self._shard.parse(entry, worker)
        if isinstance(outcome, StreamPosition):
            self._receiver.gap(worker, outcome)
            return None
        if outcome is not None:
            self._observer.opened(outcome, arrived_ns)
            if outcome.ended:
                self._finish(outcome)
        return outcome

    def _finish(self, parse: TurnParse) -> None:
        """Records a turn that its tokens have ended. If the parser has cut it, the engine still
        decodes."""
        stream = parse.stream
        self._observer.finished(parse)
        self._ledger.write(parse)
        cut = parse.blocks.cut
        if cut is FinishReason.STOP_STRING:
            self._closed.cancel(Cancel(stream.turn, stream.attempt, "stop_string"))
        elif cut is not None or parse.blocks.broken_call is not None:
            self._closed.cancel(Cancel(stream.turn, stream.attempt, "calls"))

    def _fail(self, entry: TokenEntry, worker: str, error: Exception) -> TurnParse | None:
        """Fails the turn of an entry that could not be parsed, unless it has ended. Returns it if
        its frontend is known, and can get its end from here."""
        self._observer.failed(entry.turn, error)
        parse = self._shard.turns.get(entry.turn)
        if parse is None or parse.stream.attempt != entry.attempt:
            parse = self._shard.unreadable(entry, worker)
        if parse is None:
            self._closed.close_unreadable(entry.turn, entry.attempt)
            return None

        self._closed.cancel_failed(entry.turn, entry.attempt)
        if not parse.ended:
            parse.fail(as_turnwire_error(error, "the output could not be parsed").info)
            self._observer.ended(parse)
        return parse

    def _send_soon(self, parsed: Sequence[TurnParse]) -> None:
        """Sends the new events of turns at the end of this tick, or once there is credit."""
        for frontend in self._outbox.add(parsed):
            self._sender.schedule(frontend)

    # -- the process

    async def start(self) -> None:
        """Subscribes to tokens."""
        await self._sender.start()
        await self._process.subscribe(subjects.cancel(self._model), self._on_cancel)
        await self._process.subscribe(subjects.tokens(self._process.id), self._on_frame)

    def load(self) -> Load:
        """Returns the number of turns in work."""
        return Load(running=len(self._shard.turns))

    def links(self) -> LinkStates:
        """Returns the links to the frontends."""
        return self._sender.links()

    async def drain(self) -> None:
        """Returns when every turn has ended and its frontend has all of it."""
        while self._shard.turns:
            self._turn_removed.clear()
            await self._turn_removed.wait()
        # so that the workers send no other shard what this one has sent on
        self._receiver.acknowledge()

    # -- to frontends, and what they have

    @override
    def fill(self, receiver: str, seq: int) -> EventFrame | None:
        """The next frame for a frontend. Called by `FrameSender` at the end of a tick."""
        return self._outbox.fill(receiver, seq)

    @override
    def credited(self, receiver: str, seq: int) -> None:
        for parse in self._outbox.delivered(receiver, seq):
            self._forget(parse)

    @override
    def replay(self, request: Replay) -> None:
        self._send_soon(self._shard.rewind(request))

    # -- cancellation

    def _on_cancel(self, delivery: Delivery) -> None:
        cancel = _decode_cancel(delivery.data)
        if cancel.reason in _FROM_PARSERS:
            return
        self._closed.note_cancel(cancel)
        parse = self._shard.turns.get(cancel.turn)
        if parse is None or parse.stream.attempt > cancel.attempt:
            self._closed.close(cancel.turn, cancel.attempt)
            return

        if not parse.ended:
            self._observer.ended(parse)
            if cancel.reason != "superseded":
                parse.leave_fast_path()
                self._ledger.write(parse)
        self._forget(parse)

    # -- turns that are lost or no longer needed

    def _given_up(self, worker: str) -> None:
        """Drops the turns of a worker that took this shard for dead: they are parsed elsewhere, or
        sent again."""
        for parse in self._shard.open_turns(worker):
            # rare: a parser drops the turns of a worker that took it for dead
            self._remove(parse)

    def _peer_left(self, heartbeat: Heartbeat) -> None:
        if heartbeat.stage != "worker":
            return
        lost = self._shard.open_turns(heartbeat.id)
        for parse in lost:
            # rare: a parser hands back the turns of a worker that was lost
            parse.interrupt(
                ErrorInfo(ErrorKind.ENGINE, "the worker was lost in mid-turn", code=ENGINE_DIED)
            )
            self._observer.ended(parse)
        self._send_soon(lost)
        if lost:
            self._observer.worker_lost(heartbeat.id, len(lost))

    def _frontend_gone(self, frontend: str) -> None:
        self._sender.forget(frontend)
        self._outbox.forget(frontend)
        for parse in self._shard.turns_of(frontend):
            self._forget(parse)

    def _forget(self, parse: TurnParse) -> None:
        """Removes a turn with tokens that are not to be parsed again."""
        self._closed.close(parse.stream.turn, parse.stream.attempt)
        self._remove(parse)

    def _remove(self, parse: TurnParse) -> None:
        self._outbox.remove(parse)
        self._shard.remove(parse)
        self._turn_removed.set()


async def run(config: ParserConfig) -> None:
    """Loads the model's vocabulary, serves until it is stopped, drains.

    Raises:
        TurnwireError: no connection to the bus, or no tokenizer.
        EngineFailed: the connection to the bus was lost permanently.
    """
    process = Process("parser", config)
    loop = asyncio.get_running_loop()
    load = partial(load_backend, config.model, trust_remote_code=config.trust_remote_code)
    tokenizer: Tokenizer = await loop.run_in_executor(None, load)
    vocabulary = await loop.run_in_executor(None, Vocabulary, tokenizer)
    process.log.info("parser.loaded", model=config.model, byte_exact=vocabulary.exact)
    shard = Shard(vocabulary, Sealer.load(config.seal_key_file, config.model_name))
    signer = EntrySigner.load(config.seal_key_file, config.model_name)
    await process.connect()
    bucket = None
    if config.ledger_store_mb:
        bucket = Bucket(process.bus, ledger_bucket(config), process.log)
    ledger = BusLedgerWriter(process, signer, bucket)
    parser = Parser(process, shard, config.model_name, ledger)
    await parser.start()
    relax_gc_and_trim_heap()
    process.serve(parser)
    await process.run()
