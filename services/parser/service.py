"""The parser process: token frames in, event frames out.

Every token frame is handled whole, in one go; what it made of all turns goes out at the end of the same tick, one event
frame per frontend. Turns stay here until their frontend has the last event, so that whatever is lost on the way can be
asked for again.
"""

import asyncio
from collections import OrderedDict, deque
from functools import partial
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from schemas import subjects
from schemas.control import Beat, Cancel, Load, ModelCard, Replay, Standing
from schemas.errors import ENGINE_DIED, ErrorInfo, ErrorKind, Invalid
from schemas.events import FinishReason
from schemas.frames import EventEntry, EventFrame, TokenFrame
from services.parser.detokenizer import Vocabulary
from services.parser.seal import Sealer
from services.parser.shard import Shard, TurnParse
from services.runtime.bus import Message
from services.runtime.config import ParserConfig
from services.runtime.process import Process
from services.runtime.streams import FrameReceiver, FrameSender

MAX_DONE = 16_384
"""Finished turns that are remembered, so that a late repeat of their tokens is not parsed again."""
MAX_FRAME_EVENTS = 4096

_decode_frame = msgspec.json.Decoder(TokenFrame).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode


class Parser:
    """One shard on the bus."""

    def __init__(self, process: Process, shard: Shard, model: str) -> None:
        self._process = process
        self._shard = shard
        self._model = model
        self._log = process.log
        self._receiver = FrameReceiver(process, "worker", self._standings)
        self._sender = FrameSender(
            process, "frontend", subjects.events, self._fill, on_credit=self._credited, on_replay=self._replay
        )
        self._dirty: dict[str, dict[str, TurnParse]] = {}
        self._ends: dict[str, deque[tuple[int, TurnParse]]] = {}
        self._done: OrderedDict[str, int] = OrderedDict()
        """turn → newest attempt that needs no more attention."""
        self._empty = asyncio.Event()
        self._empty.set()
        process.models = [ModelCard(name=model)]
        process.load = lambda: Load(running=len(self._shard.turns))
        process.registry.on_leave(self._peer_left)

    async def start(self) -> None:
        """Subscribes; from now on tokens come."""
        await self._sender.start()
        await self._process.subscribe(subjects.cancel(self._model), self._cancel)
        await self._process.subscribe(subjects.tokens(self._process.id), self._frame)

    async def drain(self) -> None:
        """Returns when every turn has ended and its frontend has all of it."""
        await self._empty.wait()

    def _frame(self, message: Message) -> None:
        frame = _decode_frame(message.data)
        done = self._done
        for entry in frame.entries:
            if done.get(entry.turn, 0) >= entry.attempt:
                continue
            try:
                taken = self._shard.take(entry, frame.sender)
            except Exception as error:
                # One turn's failure (an unknown family in its context, a defect) must not touch its neighbours.
                self._fail(entry.turn, entry.attempt, error)
                continue
            if isinstance(taken, Standing):
                self._receiver.gap(frame.sender, taken)
            elif taken is not None:
                self._mark(taken)
                if taken.cut is not None:
                    self._cut(taken)
        if self._empty.is_set() and self._shard.turns:
            self._empty.clear()
        self._receiver.arrived(frame.sender, frame.seq, len(message.data))

    def _mark(self, parse: TurnParse) -> None:
        frontend = parse.context.frontend
        self._dirty.setdefault(frontend, {})[parse.turn] = parse
        self._sender.mark(frontend)

    def _fill(self, frontend: str, seq: int) -> EventFrame | None:
        dirty = self._dirty.get(frontend)
        if not dirty:
            return None
        entries: list[EventEntry] = []
        budget = MAX_FRAME_EVENTS
        for turn, parse in list(dirty.items()):
            events = parse.log.read(parse.sent)
            del dirty[turn]
            if not events:
                continue
            entries.append(EventEntry(turn, parse.attempt, list(events)))
            if parse.ended:
                self._ends.setdefault(frontend, deque()).append((seq, parse))
            budget -= len(events)
            if budget <= 0:
                break
        return EventFrame(self._process.id, seq, entries) if entries else None

    def _credited(self, frontend: str, seq: int) -> None:
        ends = self._ends.get(frontend)
        while ends and ends[0][0] <= seq:
            _, parse = ends.popleft()
            if parse.sent.ended:  # else it was rewound since, and its end goes out again
                self._forget(parse)

    def _replay(self, request: Replay) -> None:
        named = {standing.turn: standing for standing in request.streams}
        for parse in list(self._shard.turns.values()):
            if parse.context.frontend != request.receiver:
                continue
            standing = named.get(parse.turn)
            if standing is not None and standing.attempt <= parse.attempt:
                parse.sent.rewind(standing)
            elif standing is None and request.all:
                parse.sent.rewind(Standing(parse.turn, parse.attempt))
            else:
                continue
            self._mark(parse)

    def _cut(self, parse: TurnParse) -> None:
        """The turn is over for the client while the engine still decodes: stop it."""
        cut = parse.cut is FinishReason.STOP_STRING
        cancel = Cancel(parse.turn, parse.attempt, "stop_string" if cut else "calls")
        self._process.publish(subjects.cancel(self._model), cancel)

    def _cancel(self, message: Message) -> None:
        cancel = _decode_cancel(message.data)
        if cancel.reason in ("stop_string", "calls"):
            return  # this side's own word to the worker
        parse = self._shard.turns.get(cancel.turn)
        if parse is not None and parse.attempt <= cancel.attempt:
            self._forget(parse)
        else:
            self._remember(cancel.turn, cancel.attempt)

    def _fail(self, turn: str, attempt: int, error: Exception) -> None:
        self._log.exception("parser.turn_failed", turn=turn)
        parse = self._shard.turns.get(turn)
        if parse is not None and not parse.ended:
            parse.fail(ErrorInfo(ErrorKind.ENGINE, f"the output could not be parsed: {type(error).__name__}"))
            self._mark(parse)
        self._process.publish(subjects.cancel(self._model), Cancel(turn, attempt, "calls"))

    def _forget(self, parse: TurnParse) -> None:
        if self._shard.turns.get(parse.turn) is parse:
            del self._shard.turns[parse.turn]
        self._dirty.get(parse.context.frontend, {}).pop(parse.turn, None)
        self._remember(parse.turn, parse.attempt)
        if not self._shard.turns:
            self._empty.set()

    def _remember(self, turn: str, attempt: int) -> None:
        self._done[turn] = max(attempt, self._done.pop(turn, 0))
        while len(self._done) > MAX_DONE:
            self._done.popitem(last=False)

    def _standings(self, worker: str) -> list[Standing]:
        return self._shard.standings(worker)

    def _peer_left(self, beat: Beat) -> None:
        if beat.stage == "frontend":
            self._sender.forget(beat.id)
            self._ends.pop(beat.id, None)
            self._dirty.pop(beat.id, None)
            for parse in list(self._shard.turns.values()):
                if parse.context.frontend == beat.id:
                    self._forget(parse)
        elif beat.stage == "worker":
            lost = [p for p in self._shard.turns.values() if p.worker == beat.id and not p.ended]
            for parse in lost:
                parse.interrupt(ErrorInfo(ErrorKind.ENGINE, "the worker was lost in mid-turn", code=ENGINE_DIED))
                self._mark(parse)
            if lost:
                self._log.warning("parser.worker_lost", worker=beat.id, turns=len(lost))


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model directory or hub id.

    Raises:
        Invalid: the model has none that this process could decode with.
    """
    file = Path(model) / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    from transformers import AutoTokenizer  # seconds to import, and only needed for hub ids and older forms

    backend = getattr(AutoTokenizer.from_pretrained(model), "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise Invalid(f"{model} has no tokenizer.json, nor a tokenizer that could be made into one", param="model")
    return backend


async def run(config: ParserConfig) -> None:
    """Loads the model's vocabulary, serves until told to stop, drains.

    Raises:
        TurnwireError: the bus or the tokenizer could not be had.
        EngineFailed: the bus was lost for good.
    """
    process = Process("parser", config)
    loop = asyncio.get_running_loop()
    tokenizer: Tokenizer = await loop.run_in_executor(None, partial(load_tokenizer, config.model))
    vocabulary = await loop.run_in_executor(None, Vocabulary, tokenizer)
    process.log.info("parser.loaded", model=config.model, byte_exact=vocabulary.exact)
    shard = Shard(vocabulary, Sealer.load(config.seal_key_file, config.model_name))
    await process.connect()
    parser = Parser(process, shard, config.model_name)
    await parser.start()
    await process.run(parser.drain)
