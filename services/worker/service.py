"""The worker process: one engine on the bus.

A generate request is admitted or refused at once; then the engine puts each step's tokens into the turn's token stream,
and the outbox drains what is ready to the parser shards, one frame per shard and tick. Nothing of it waits, so that a
turn needs no task. Cancellation closes the engine's handle.
"""

import asyncio
import time
from collections import OrderedDict

import msgspec
from prometheus_client import Histogram
from structlog.typing import FilteringBoundLogger

from schemas import subjects
from schemas.control import Beat, Cancel, ModelCard, Replay
from schemas.conversation import OutputFormat, Sampling
from schemas.errors import EngineFailed, Invalid, Overloaded, TurnwireError, Unavailable
from schemas.events import Failed
from schemas.frames import (
    EventEntry,
    EventFrame,
    GenerateReply,
    GenerateRequest,
    pack_ids,
    unpack_array,
    unpack_ids,
)
from services.runtime.bus import Message
from services.runtime.config import WorkerConfig
from services.runtime.memory import forget_what_stays
from services.runtime.process import Process
from services.runtime.streams import FRAME_BYTES, FrameSender
from services.worker.admission import check
from services.worker.decoding import Decoding
from services.worker.engine import Delta, Engine, EngineDied, EngineInfo, EngineRequest
from services.worker.engines import open_engine
from services.worker.kv_publisher import open_publisher
from services.worker.pacing import Pacer
from services.worker.stepper import UNSENDABLE, Outbox, TokenStream

LINGER_S = 15.0
"""How long a finished turn can still be sent to another shard: several times the time to notice a death."""
FRAME_GAP_S = 0.001
"""Between two frames to a shard that hold ordinary steps: a fraction of what a large model takes for one."""
MAX_CANCELS = 8192
HEALTH_INTERVAL_S = 0.5
RETRY_AFTER_S = 1.0

_decode_request = msgspec.json.Decoder(GenerateRequest).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode
_decode_form = msgspec.json.Decoder(OutputFormat | None).decode
_encode = msgspec.json.Encoder().encode


class Worker:
    """Everything between the bus and one engine."""

    def __init__(self, process: Process, engine: Engine, info: EngineInfo, model: str, queue_limit: int) -> None:
        self._process = process
        self._engine = engine
        self._info = info
        self._model = model
        self._queue_limit = queue_limit
        self._log = process.log
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(process.id, frame_bytes=FRAME_BYTES, linger_s=LINGER_S, on_broken=self._broken)
        self._sender = FrameSender(
            process,
            "parser",
            subjects.tokens,
            self._outbox.fill,
            on_credit=self._credited,
            on_replay=self._replay,
            on_unsendable=self._outbox.take_back,
        )
        self._pacer = Pacer(FRAME_GAP_S, marked=self._sender.marked, mark=self._sender.mark, loop=self._loop)
        self._turns: dict[str, Decoding] = {}
        """The newest attempt at each turn, while it decodes."""
        self._idle = asyncio.Event()
        """No turn decodes."""
        self._idle.set()
        self._cancelled: OrderedDict[str, int] = OrderedDict()
        self._settled = asyncio.Event()
        """No turn decodes, and the shards have everything."""
        self._settled.set()
        self._orphans: set[str] = set()
        """Shards that are gone and whose streams found no other shard yet."""
        self._abort_seconds = Histogram(
            "turnwire_cancel_to_abort_seconds",
            "From a cancellation's arrival at the worker until the engine has let the turn go.",
            registry=process.metrics,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
        )
        self._kv = open_publisher(process, engine, info, model)
        process.load = engine.load
        process.models = [
            ModelCard(
                name=model,
                max_model_len=info.max_model_len,
                created=int(time.time()),
                features=sorted(info.features),
                engine=info.name,
                block_tokens=info.block_tokens or 0,
            )
        ]
        process.registry.on_leave(self._peer_left)
        process.registry.on_join(self._peer_joined)
        process.on_tick.append(self._outbox.expire)

    async def start(self) -> None:
        """Subscribes; from now on requests come."""
        await self._sender.start()
        await self._process.subscribe(subjects.cancel(self._model), self._cancel)
        await self._process.subscribe(subjects.generate(self._model, self._process.id), self._request)
        if self._kv is not None:
            await self._kv.start()

    async def drain(self) -> None:
        """Returns when every turn has ended and its shard has all of its tokens."""
        self._settle()
        await self._settled.wait()

    async def watch(self) -> None:
        """Ends the process when the engine has died, whether or not a turn was open to notice it."""
        while self._engine.healthy():  # noqa: ASYNC110 - an engine that dies tells nobody
            await asyncio.sleep(HEALTH_INTERVAL_S)
        # Turns first: their errors must be in the outbox before the process goes.
        await self._idle.wait()
        await asyncio.sleep(0)
        self._process.stop(failure="the engine died")

    def _request(self, message: Message) -> None:
        request = _decode_request(message.data)
        error = None
        try:
            self._take(request)
        except TurnwireError as refusal:
            error = refusal.info
        except Exception as failure:
            self._log.exception("worker.request_failed", turn=request.turn)
            error = EngineFailed(f"the request could not be taken: {type(failure).__name__}").info
        reply = _encode(GenerateReply(self._process.id, error))
        if error is None:
            self._loop.call_soon(message.reply, reply)  # in one write with the parse context, behind it
        else:
            message.reply(reply)

    def _take(self, request: GenerateRequest) -> None:
        self._admit(request)
        if not request.parser:
            self._prefill(request)
            return
        resume = unpack_ids(request.resume)
        token_ids = unpack_array(request.prompt + request.resume)
        keys = self._kv.keys(request.prompt + request.resume, request.cache_salt) if self._kv is not None else None
        engine_request = EngineRequest(
            id=f"{request.turn}.{request.attempt}",
            token_ids=token_ids,
            sampling=_what_is_left(request.sampling, len(resume)) if resume else request.sampling,
            stop_ids=request.stop_ids,
            priority=request.priority,
            cache_salt=request.cache_salt,
            guided=_decode_form(request.guided),
            resumed=len(resume),
            block_keys=keys,
        )
        check(engine_request, self._info)
        if request.turn in self._turns:
            self._turns[request.turn].cancel()
        stream = TokenStream(
            request.turn,
            request.attempt,
            parser=self._shard_for(request.parser),
            frontend=request.frontend,
            context=request.context.copy(),  # as it is, it would hold on to the whole message, prompt and all
            resume=resume,
        )
        decoding = Decoding(stream, mark=self._outbox.mark, on_step=self._stepped, on_end=self._ended)
        # Before the stream is marked: an engine that has its first token in its next step sends it in the frame of the
        # parse context.
        try:
            decoding.handle = self._engine.open(engine_request, decoding)
        except EngineDied as death:
            raise Unavailable("this worker is going away") from death
        self._turns[request.turn] = decoding
        self._idle.clear()
        self._settled.clear()
        self._outbox.open(stream)
        self._send(stream)  # the parse context: should this worker die in prefill, the shard knows of the turn
        self._process.registry.expect("frontend", stream.frontend, self._loop.time())
        if self._kv is not None and keys is not None:
            decoding.block_keys, decoding.salt = keys, request.cache_salt
            decoding.rest = token_ids[len(keys) * self._kv.block_tokens :]
            self._kv.used(keys)

    def _prefill(self, request: GenerateRequest) -> None:
        """Computes a prompt that is likely to come, while there is nothing else to do."""
        if self._turns or self._engine.load().waiting:
            raise Overloaded("this worker has turns to decode", retry_after_s=RETRY_AFTER_S)
        keys = self._kv.keys(request.prompt, request.cache_salt) if self._kv is not None else None
        engine_request = EngineRequest(
            id=f"{request.turn}.{request.attempt}",
            token_ids=unpack_array(request.prompt),
            sampling=request.sampling,
            stop_ids=request.stop_ids,
            priority=request.priority,
            cache_salt=request.cache_salt,
            block_keys=keys,
        )
        check(engine_request, self._info)
        self._engine.open(engine_request, _Prefill(request.turn, self._log))
        if self._kv is not None and keys is not None:
            self._kv.used(keys)

    def _admit(self, request: GenerateRequest) -> None:
        if self._process.draining or not self._engine.healthy():
            raise Unavailable("this worker is going away")
        if self._cancelled.get(request.turn, 0) >= request.attempt:
            raise Unavailable("the turn was cancelled")
        if request.turn in self._turns and self._turns[request.turn].stream.attempt >= request.attempt:
            raise Unavailable("this worker has the turn already")
        slots = self._engine.load().slots
        if 0 < slots <= len(self._turns) - self._queue_limit:
            raise Overloaded("all slots of this worker are taken and its queue is full", retry_after_s=RETRY_AFTER_S)

    def _shard_for(self, parser: str) -> str:
        """The shard that was asked for, or another where that one is not there (any more)."""
        registry = self._process.registry
        if registry.get("parser", parser) is not None:
            return parser
        heir = self._heir()
        if heir is None:
            registry.expect("parser", parser, self._loop.time())
        return heir or parser

    def _ended(self, decoding: Decoding) -> None:
        stream = decoding.stream
        self._send(stream)
        self._outbox.ended(stream, self._loop.time())
        if self._turns.get(stream.turn) is decoding:
            del self._turns[stream.turn]
            if not self._turns:
                self._idle.set()
        if self._kv is not None and decoding.block_keys is not None:
            output = stream.ids[stream.resumed :]
            self._kv.ended(decoding.block_keys, pack_ids(decoding.rest), output, decoding.salt)
        self._settle()
        if not self._outbox.busy and self._process.draining:
            self._process.poke()  # a beat makes the shards say what they have

    def _stepped(self, stream: TokenStream) -> None:
        if stream.sent > 0:
            self._pacer.soon(stream.parser)
        else:
            self._pacer.now(stream.parser)

    def _send(self, stream: TokenStream) -> None:
        self._outbox.mark(stream)
        self._pacer.now(stream.parser)

    def _broken(self, stream: TokenStream) -> None:
        self._log.error("worker.tokens_unsendable", turn=stream.turn, at=len(stream.ids))
        decoding = self._turns.get(stream.turn)
        if decoding is not None and decoding.stream is stream:
            # Not from within the draining, to which the turn's end is one more thing to send.
            self._loop.call_soon(decoding.abandon, EngineFailed(UNSENDABLE.message))

    def _credited(self, parser: str, seq: int) -> None:
        self._outbox.credited(parser, seq)
        self._settle()

    def _settle(self) -> None:
        if self._settled.is_set() or self._outbox.busy:
            return
        there = self._process.registry
        if all(there.get("parser", stream.parser) is None for stream in self._outbox.undelivered()):
            self._settled.set()

    def _replay(self, request: Replay) -> None:
        self._outbox.replay(request)

    def _cancel(self, message: Message) -> None:
        cancel = _decode_cancel(message.data)
        # Remembered, for the request itself may still be on its way.
        self._cancelled[cancel.turn] = max(cancel.attempt, self._cancelled.pop(cancel.turn, 0))
        while len(self._cancelled) > MAX_CANCELS:
            self._cancelled.popitem(last=False)
        if cancel.reason == "unreadable":
            self._tell_failed(cancel)
        if cancel.turn not in self._turns:
            return
        decoding = self._turns[cancel.turn]
        stream = decoding.stream
        if stream.attempt <= cancel.attempt:
            arrived = time.perf_counter()
            decoding.cancel()
            self._abort_seconds.observe(time.perf_counter() - arrived)
            self._log.info("worker.cancelled", turn=cancel.turn, reason=cancel.reason, tokens=len(stream.ids))

    def _tell_failed(self, cancel: Cancel) -> None:
        """Tells the frontend in the shard's place, which does not know it."""
        stream = self._outbox.find(cancel.turn, cancel.attempt)
        if stream is not None:
            error = EngineFailed("the output could not be parsed").info
            frame = EventFrame(self._process.id, 0, [EventEntry(cancel.turn, cancel.attempt, [Failed(error)])])
            self._process.publish(subjects.events(stream.frontend), frame)

    def _peer_left(self, beat: Beat) -> None:
        if beat.stage == "parser":
            self._sender.forget(beat.id)
            self._pacer.forget(beat.id)
            self._orphans.add(beat.id)
            self._adopt()
            self._settle()
        elif beat.stage == "frontend":
            for decoding in list(self._turns.values()):
                if decoding.stream.frontend == beat.id:
                    self._log.info("worker.cancelled", turn=decoding.stream.turn, reason="frontend_gone")
                    decoding.cancel()

    def _peer_joined(self, beat: Beat) -> None:
        if beat.stage == "parser" and self._orphans:
            self._adopt()

    def _heir(self) -> str | None:
        """The shard with the fewest turns."""
        shards = self._process.registry.able("parser", self._model)
        return min(shards, key=lambda shard: shard.load.running).id if shards else None

    def _adopt(self) -> None:
        heir = self._heir()
        if heir is None:
            return
        for gone in self._orphans:
            self._sender.forget(gone)
            moved = self._outbox.move(gone, heir)
            if moved:
                self._log.warning("worker.shard_lost", shard=gone, heir=heir, streams=moved)
                self._sender.mark(heir)
        self._orphans.clear()


class _Prefill:
    """The sink of a prefill: nobody reads what it makes."""

    def __init__(self, turn: str, log: FilteringBoundLogger) -> None:
        self._turn = turn
        self._log = log

    def put(self, delta: Delta) -> None:
        """See `Sink.put`."""

    def fail(self, error: TurnwireError) -> None:
        """See `Sink.fail`."""
        self._log.info("worker.prefill_failed", turn=self._turn, error=str(error))


def _what_is_left(sampling: Sampling, said: int) -> Sampling:
    """The limits behind `said` output tokens of an earlier attempt."""
    most, least = sampling.max_tokens or 0, sampling.min_tokens
    return msgspec.structs.replace(
        sampling,
        max_tokens=max(most - said, 0),
        min_tokens=None if least is None else max(least - said, 0),
    )


async def run(config: WorkerConfig) -> None:
    """Loads the engine, serves until told to stop, drains.

    Raises:
        TurnwireError: the bus or the engine could not be started.
        EngineFailed: the engine or the bus was lost.
    """
    process = Process("worker", config)
    engine = open_engine(config.engine, config)
    started = time.monotonic()
    process.log.info("worker.loading", engine=config.engine, model=config.model)
    try:
        info = await engine.start()
    except (ImportError, ValueError) as error:
        raise Invalid(f"the {config.engine} engine cannot serve {config.model}: {error}") from error
    try:
        process.log.info(
            "worker.loaded",
            seconds=round(time.monotonic() - started, 2),
            max_model_len=info.max_model_len,
            slots=info.slots,
            features=sorted(info.features),
        )
        await process.connect()
        worker = Worker(process, engine, info, config.model_name, config.queue_limit)
        await worker.start()
        process.spawn(worker.watch(), "watch")
        forget_what_stays()
        await process.run(worker.drain)
    finally:
        await engine.stop(config.drain_s)
