"""The parser process, which turns token frames into event frames.

A token frame is handled without a break, and the events of all its turns are sent at the end of the
same tick, in one event frame per frontend. A turn stays here until its frontend has the last event,
so that lost frames can be replayed.
"""

import asyncio
from collections import deque
from functools import partial
from itertools import islice
from time import perf_counter, time_ns

import msgspec
from tokenizers import Tokenizer

from schemas import subjects
from schemas.control import Cancel, Heartbeat, Load, ModelCard, Replay, StreamPosition
from schemas.errors import ENGINE_DIED, ErrorInfo, ErrorKind
from schemas.events import Failed, Finish, FinishReason, Interrupted, Prepared, TurnEvent
from schemas.frames import EventEntry, EventFrame, TokenEntry, TokenFrame
from services.families.family import title
from services.ledger.signer import EntrySigner
from services.parser.ledger_writer import LedgerWriter
from services.parser.shard import Shard
from services.parser.turn_parse import TurnParse
from services.runtime.bus import Delivery
from services.runtime.config import ParserConfig
from services.runtime.heartbeats import Links, Service
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.observability.metrics import step_histogram
from services.runtime.process import Process
from services.runtime.recent_turns import RecentTurns
from services.runtime.storage.kv import Bucket, ledger_bucket
from services.runtime.storage.seal import Sealer
from services.runtime.streams.frames import FRAME_BYTES, FrameReceiver, FrameSender
from services.runtime.streams.frontend_watch import FrontendWatch
from services.tokenization.detokenizer import Vocabulary
from services.tokenization.tokenizer_files import load_backend

CANCEL_AGAIN_S = 0.5
"""The least time between two cancels to the worker of a finished turn with tokens that still
arrive."""

_decode_frame = msgspec.json.Decoder(TokenFrame).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode


class Parser(Service):
    """Connects one shard to the bus."""

    def __init__(
        self, process: Process, shard: Shard, model: str, ledger: LedgerWriter | None = None
    ) -> None:
        self._process = process
        self._ledger = ledger
        self._shard = shard
        self._model = model
        self._log = process.log
        self._receiver = FrameReceiver(
            process, "worker", shard.positions, on_given_up=self._given_up
        )
        self._sender = FrameSender(
            process, "frontend", self._fill, on_credit=self._credited, on_replay=self._replay
        )
        self._dirty: dict[str, dict[str, TurnParse]] = {}
        """Frontend → its turns with unsent events."""
        self._ends: dict[str, deque[tuple[int, TurnParse]]] = {}
        """Frontend → (frame that carried a turn's last event, turn)."""
        self._done = RecentTurns()
        """Finished turns: late repeats of their tokens are not parsed again."""
        self._cancelled = RecentTurns(CANCEL_AGAIN_S)
        """Turns with a recent cancel."""
        self._unreadable = RecentTurns()
        """Turns with a frontend that cannot be read here. Their worker reports the failure."""
        text = "From the arrival of a turn's last tokens to the frame with its last events."
        self._parse_s = step_histogram("parse", text, process.metrics)
        self._empty = asyncio.Event()
        self._empty.set()
        self.models = [ModelCard(name=model)]
        process.registry.on_leave(self._peer_left)
        FrontendWatch(process, self._frontend_gone)

    async def start(self) -> None:
        """Subscribes to tokens."""
        await self._sender.start()
        await self._process.subscribe(subjects.cancel(self._model), self._cancel)
        await self._process.subscribe(subjects.tokens(self._process.id), self._frame)

    def load(self) -> Load:
        """Returns the number of turns in work."""
        return Load(running=len(self._shard.turns))

    def links(self) -> Links:
        """Returns the links to the frontends."""
        return self._sender.links()

    async def drain(self) -> None:
        """Returns when every turn has ended and its frontend has all of it."""
        await self._empty.wait()
        # so that the workers send no other shard what this one has sent on
        self._receiver.acknowledge()

    def _frame(self, delivery: Delivery) -> None:
        frame = _decode_frame(delivery.data)
        if not self._receiver.opens(frame.sender, frame.seq):
            return
        turns = self._shard.turns
        frontend, dirty = "", dict[str, TurnParse]()
        for entry in frame.entries:
            turn = entry.turn
            parse = turns.get(turn)
            if parse is None or not parse.take_fast(entry):
                self._take(entry, frame.sender)
                continue
            if parse.frontend != frontend:
                frontend = parse.frontend
                dirty = self._dirty.setdefault(frontend, {})
                self._sender.schedule(frontend)
            dirty[turn] = parse
        if self._empty.is_set() and self._shard.turns:
            self._empty.clear()
        self._receiver.arrived(frame.sender, frame.seq, len(delivery.data))

    def _take(self, entry: TokenEntry, worker: str) -> None:
        if self._done.attempt(entry.turn) >= entry.attempt:
            if entry.finish is None:
                self._cancel_again(entry.turn)
            return
        opened_ns = time_ns() if self._process.tracer is not None else 0
        try:
            outcome = self._shard.take(entry, worker)
        except Exception as error:
            # One turn's failure (an unknown family in its context, a defect) must not affect other
            # turns.
            self._fail(entry, worker, error)
            return
        if isinstance(outcome, StreamPosition):
            self._receiver.gap(worker, outcome)
        elif outcome is not None:
            self._schedule(outcome)
            outcome.opened_ns = outcome.opened_ns or opened_ns
            if outcome.ended:
                outcome.ended_at = perf_counter()  # the loop's time does not advance within a tick
                self._trace(outcome)
                if self._ledger is not None:
                    self._ledger.write(outcome)
            if (
                outcome.cut is not None
            ):  # the turn has ended for the client, but the engine still decodes
                stopped = outcome.cut is FinishReason.STOP_STRING
                self._publish_cancel(
                    Cancel(outcome.turn, outcome.attempt, "stop_string" if stopped else "calls")
                )

    def _schedule(self, parse: TurnParse) -> None:
        frontend = parse.frontend
        self._dirty.setdefault(frontend, {})[parse.turn] = parse
        self._sender.schedule(frontend)

    def _fill(self, frontend: str, seq: int) -> EventFrame | None:
        dirty = self._dirty.get(frontend)
        if not dirty:
            return None
        entries: list[EventEntry] = []
        room = FRAME_BYTES
        filed = 0
        for turn, parse in dirty.items():
            if parse.plain is not None and (size := len(parse.fresh)) < room:
                filed += 1
                if size:
                    room -= size
                    entries.append(
                        EventEntry(turn, parse.attempt, [parse.next_delta()], len(parse.ids))
                    )
                continue
            events, room = parse.read(room)
            unsent: list[TurnEvent] = (
                list(events) if parse.announced else [self._announced(parse), *events]
            )
            if room > 0:
                filed += 1
                parse.enter_fast_path()
            if unsent:
                entries.append(EventEntry(turn, parse.attempt, unsent, len(parse.ids)))
            if parse.sent.ended and unsent:
                parse.end_seq = seq
                if parse.ended_at:
                    self._parse_s.observe(perf_counter() - parse.ended_at)
                    parse.ended_at = 0.0  # replays are not measured
                self._ends.setdefault(frontend, deque()).append((seq, parse))
            if room <= 0:
                break
        if filed == len(dirty):
            dirty.clear()
        else:
            for turn in list(islice(dirty, filed)):
                del dirty[turn]
        return EventFrame(self._process.id, seq, entries) if entries else None

    def _announced(self, parse: TurnParse) -> Prepared:
        parse.announced = True
        now, registry = asyncio.get_running_loop().time(), self._process.registry
        registry.expect("frontend", parse.frontend, now)
        registry.expect("worker", parse.worker, now)
        context, own = parse.context, self._process.id
        cached = min(parse.held if parse.cached is None else parse.cached, context.prompt_tokens)
        ids, comparison = context.prompt_ids, context.comparison
        return Prepared(
            context.prompt_tokens, context.max_tokens, parse.worker, own, ids, cached, comparison
        )

    def _credited(self, frontend: str, seq: int) -> None:
        ends = self._ends.get(frontend)
        while ends and ends[0][0] <= seq:
            number, parse = ends.popleft()
            if parse.end_seq == number:  # else it was rewound, and its end is sent again
                self._forget(parse)

    def _replay(self, request: Replay) -> None:
        positions = {position.turn: position for position in request.streams}
        for parse in list(self._shard.turns.values()):
            if parse.frontend != request.receiver:
                continue
            position = positions.get(parse.turn)
            if position is not None and position.attempt <= parse.attempt:
                # rare: a frontend asks for events again
                parse.rewind(position)
            elif position is None and request.all:
                parse.rewind(StreamPosition(parse.turn, parse.attempt))
            else:
                continue
            self._schedule(parse)

    def _cancel(self, delivery: Delivery) -> None:
        cancel = _decode_cancel(delivery.data)
        if cancel.reason in ("stop_string", "calls", "failed", "unreadable"):
            return  # sent by a parser: the worker's last tokens are still to arrive
        self._cancelled.note(cancel.turn, cancel.attempt)
        parse = self._shard.turns.get(cancel.turn)
        if parse is not None and parse.attempt <= cancel.attempt:
            if not parse.ended:
                self._trace(parse)
                if self._ledger is not None and cancel.reason != "superseded":
                    parse.leave_fast_path()
                    self._ledger.write(parse)
            self._forget(parse)
        else:
            self._done.note(cancel.turn, cancel.attempt)

    def _cancel_again(self, turn: str) -> None:
        """Repeats the cancel of a finished turn, because its tokens still arrive."""
        if turn not in self._cancelled:
            # rare: tokens of a turn arrive after its end
            unreadable = turn in self._unreadable
            self._publish_cancel(
                Cancel(turn, self._done.attempt(turn), "unreadable" if unreadable else "superseded")
            )

    def _publish_cancel(self, cancel: Cancel) -> None:
        self._process.publish(subjects.cancel(self._model), cancel)
        self._cancelled.note(cancel.turn, cancel.attempt)

    def _fail(self, entry: TokenEntry, worker: str, error: Exception) -> None:
        self._log.error("parser.turn_failed", turn=entry.turn, exc_info=error)
        parse = self._shard.turns.get(entry.turn)
        if parse is None or parse.attempt != entry.attempt:
            parse = self._shard.unreadable(entry, worker)
        cancel = Cancel(entry.turn, entry.attempt, "unreadable" if parse is None else "failed")
        self._process.publish(subjects.cancel(self._model), cancel)
        if (
            parse is None
        ):  # the frontend cannot be read either: the worker, which has it, reports the failure
            self._done.note(entry.turn, entry.attempt)
            self._unreadable.note(entry.turn, entry.attempt)
        elif not parse.ended:
            parse.fail(
                ErrorInfo(
                    ErrorKind.ENGINE, f"the output could not be parsed: {type(error).__name__}"
                )
            )
            self._schedule(parse)
            self._trace(parse)

    def _forget(self, parse: TurnParse) -> None:
        self._done.note(parse.turn, parse.attempt)
        self._drop(parse)

    def _drop(self, parse: TurnParse) -> None:
        dirty = self._dirty.get(parse.frontend, {})
        if dirty.get(parse.turn) is parse:
            del dirty[parse.turn]
        if self._shard.turns.get(parse.turn) is parse:
            del self._shard.turns[parse.turn]
        if not self._shard.turns:
            self._empty.set()

    def _given_up(self, worker: str) -> None:
        """Drops the turns of a worker that took this shard for dead: they are parsed elsewhere, or
        sent again."""
        for parse in list(self._shard.turns.values()):
            if parse.worker == worker and not parse.ended:
                # rare: a parser drops the turns of a worker that took it for dead
                self._drop(parse)

    def _peer_left(self, heartbeat: Heartbeat) -> None:
        if heartbeat.stage == "worker":
            lost = [
                p for p in self._shard.turns.values() if p.worker == heartbeat.id and not p.ended
            ]
            for parse in lost:
                # rare: a parser hands back the turns of a worker that was lost
                parse.interrupt(
                    ErrorInfo(ErrorKind.ENGINE, "the worker was lost in mid-turn", code=ENGINE_DIED)
                )
                self._schedule(parse)
                self._trace(parse)
            if lost:
                self._log.warning("parser.worker_lost", worker=heartbeat.id, turns=len(lost))

    def _trace(self, parse: TurnParse) -> None:
        """Records the span of an ended parse."""
        scope = self._process.scope(parse.context.trace)
        if scope is None:
            return
        last, now = parse.log.terminal, time_ns()
        details: dict[str, str | int | bool | None] = {
            "turnwire.attempt": parse.attempt,
            "turnwire.family": title(parse.context.family),
            "turnwire.blocks": parse.log.blocks,
            "turnwire.interrupted": isinstance(last, Interrupted) or None,
            "turnwire.cancelled": last is None or None,
            "gen_ai.usage.output_tokens": last.usage.output
            if isinstance(last, Finish)
            else len(parse.ids),
        }
        error = str(last.error.kind) if isinstance(last, Failed) else None
        scope.record("parse", parse.opened_ns or now, now, details, error=error)

    def _frontend_gone(self, frontend: str) -> None:
        self._sender.forget(frontend)
        self._ends.pop(frontend, None)
        self._dirty.pop(frontend, None)
        for parse in list(self._shard.turns.values()):
            if parse.frontend == frontend:
                self._forget(parse)


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
    bucket = (
        Bucket(process.bus, ledger_bucket(config), process.log) if config.ledger_store_mb else None
    )
    parser = Parser(
        process, shard, config.model_name, LedgerWriter(process, signer, vocabulary, bucket)
    )
    await parser.start()
    relax_gc_and_trim_heap()
    process.serve(parser)
    await process.run()
