"""The worker process, which connects one engine to the bus.

The path of a turn: `_request` admits or refuses a generate request at once; the engine then puts
each step's tokens into the turn's token stream, and the outbox drains what is ready to the parser
shards, one frame per shard and tick. Nothing awaits, so that a turn needs no task, except one with
images, which are fetched first. Cancellation closes the engine's handle.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import msgspec
from prometheus_client import Histogram

from schemas import errors, subjects
from schemas.control import THINKING_BUDGET, VISION, Cancel, Heartbeat, Load, ModelCard
from schemas.conversation import OutputFormat, Sampling
from schemas.events import Failed, FinishReason
from schemas.frames import (
    EventEntry,
    EventFrame,
    GenerateReply,
    GenerateRequest,
    PrefillNotice,
    decode_generate,
    pack_ids,
    unpack_array,
    unpack_ids,
)
from services.images.stored_images import StoredImages
from services.runtime.bus import Delivery
from services.runtime.config import WorkerConfig
from services.runtime.heartbeats import Links, Service
from services.runtime.observability.log_lines import EVERY_S
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.process import Process
from services.runtime.recent_turns import RecentTurns
from services.runtime.requests import after_sending
from services.runtime.streams.frames import FRAME_BYTES, FrameSender
from services.runtime.streams.frontend_watch import FrontendWatch
from services.tokenization.block_keys import with_images
from services.worker.admission import check, check_images
from services.worker.decoding import Decoding, Prefill
from services.worker.engine import Engine, EngineDied, EngineImage, EngineInfo, EngineRequest, Sink
from services.worker.engines.registry import open_engine
from services.worker.kv.publisher import PromptBlocks, open_publisher
from services.worker.metrics import WorkerMetrics
from services.worker.outbox import UNSENDABLE, Outbox, TokenStream
from services.worker.pacing import Pacer
from services.worker.retention import RetentionQuota
from services.worker.shards import ParserShards
from services.worker.stream_spans import StreamSpans
from services.worker.thoughts import BudgetedTurn, ThoughtCounter

LINGER_S = 15.0
"""How long a finished turn can still be sent to another shard, in addition to `recovery_s`: several
times as long as the detection of a death."""
FRAME_GAP_S = 0.001
"""Time between two frames of ordinary steps to a shard: a fraction of a large model's step."""
HEALTH_INTERVAL_S = 0.5
CONTINUED_PRIORITY = 1.0
"""Added to the priority of a turn that had a slot before its thought was ended: it goes before
those that wait."""

_decode_cancel = msgspec.json.Decoder(Cancel).decode
_decode_form = msgspec.json.Decoder(OutputFormat | None).decode


class Worker(Service):
    """Everything between the bus and one engine."""

    def __init__(
        self,
        process: Process,
        engine: Engine,
        info: EngineInfo,
        model: str,
        queue_limit: int,
    ) -> None:
        self._process = process
        self._engine = engine
        self._info = info
        self._model = model
        self._queue_limit = queue_limit
        self._log = process.log
        self._loop = asyncio.get_running_loop()
        linger_s = process.config.bus.recovery_s + LINGER_S
        self._outbox = Outbox(
            process.id, frame_bytes=FRAME_BYTES, linger_s=linger_s, on_broken=self._broken
        )
        self._sender = FrameSender(
            process,
            "parser",
            self._outbox.fill,
            on_credit=self._credited,
            on_replay=self._outbox.replay,
            on_unsendable=self._outbox.take_back,
        )
        self._pacer = Pacer(FRAME_GAP_S, self._sender, self._loop)
        self._shards = ParserShards(process, model, self._outbox, self._sender, self._pacer)
        self._turns: dict[str, Decoding] = {}
        """The newest attempt at each turn, while it decodes."""
        self._deadlines: dict[Decoding, asyncio.TimerHandle] = {}
        self._spans: dict[Decoding, StreamSpans] = {}
        """The spans of traced turns."""
        self._images = StoredImages(process)
        self._fetches: set[asyncio.Task[Sequence[EngineImage]]] = set()
        """Requests with images that are not answered yet."""
        self._settled = asyncio.Event()
        """No turn decodes, and the shards have everything. Set only while this process drains."""
        self._cancelled = RecentTurns()
        self._abort_seconds = Histogram(
            "turnwire_cancel_to_abort_seconds",
            "From a cancellation's arrival at the worker until the engine has let the turn go.",
            registry=process.metrics,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
        )
        self._metrics = WorkerMetrics(process.metrics)
        self._retention = RetentionQuota(info.kv_tokens if "retention" in info.features else None)
        self._kv = open_publisher(process, engine, info, model)
        self.models = [
            ModelCard(
                name=model,
                max_model_len=info.max_model_len,
                created=int(time.time()),
                features=sorted(info.features | {THINKING_BUDGET}),
                engine=info.name,
                block_tokens=info.block_tokens or 0,
                raw_prompts=True,
                shares_queued=info.shares_queued,
            )
        ]
        process.registry.on_leave(self._peer_left)
        FrontendWatch(process, self._frontend_gone)
        process.on_tick.append(self._expire)
        process.on_attached.append(lambda: self._outbox.attached(self._loop.time()))

    async def start(self) -> None:
        """Subscribes to requests."""
        info = self._info
        if info.full_len is not None and info.max_model_len < info.full_len:
            window = {
                "max_model_len": info.max_model_len,
                "full_len": info.full_len,
                "kv_tokens": info.kv_tokens,
            }
            self._log.warning("worker.window_reduced", **window, reason=info.limit)
        await self._sender.start()
        await self._process.subscribe(subjects.cancel(self._model), self._cancel)
        await self._process.subscribe(
            subjects.generate(self._model, self._process.id), self._request
        )
        if self._kv is not None:
            await self._kv.start()

    def load(self) -> Load:
        """Returns the engine's load."""
        return self._engine.load()

    def links(self) -> Links:
        """Returns the links to the parser shards."""
        return self._sender.links()

    async def drain(self) -> None:
        """Returns when every turn has ended and its shard has all of its tokens."""
        self._settle()
        await self._settled.wait()

    async def watch(self) -> None:
        """Ends the process when the engine has died, whether or not a turn was open to report it."""
        # An engine that dies sends no event. The errors of its turns must be sent before the
        # process ends.
        while self._engine.healthy() or self._turns:  # noqa: ASYNC110
            await asyncio.sleep(HEALTH_INTERVAL_S)
        self._process.stop(failure="the engine died")

    # -- a turn begins
    # ----------------------------------------------------------------------------------------------

    def _request(self, delivery: Delivery) -> None:
        request = decode_generate(delivery.data)
        if not request.images:
            self._answer(delivery, request)
            return
        task = self._loop.create_task(self._fetch(request))
        self._fetches.add(task)
        task.add_done_callback(partial(self._fetched, delivery, request, self._loop.time()))

    async def _fetch(self, request: GenerateRequest) -> Sequence[EngineImage]:
        self._admit(request)
        check_images(request.images, len(request.prompt) // 4, self._info)
        data = await self._images.read(request.images)
        return [
            EngineImage(image.hash, image.at, image.tokens, data[image.hash])
            for image in request.images
        ]

    def _fetched(
        self,
        delivery: Delivery,
        request: GenerateRequest,
        arrived: float,
        task: "asyncio.Task[Sequence[EngineImage]]",
    ) -> None:
        self._fetches.discard(task)
        if not task.cancelled():  # as at the end of the process
            if request.timeout_s is not None:
                rest = request.timeout_s - (self._loop.time() - arrived)
                request = msgspec.structs.replace(request, timeout_s=rest)
            self._answer(delivery, request, task.result)
        self._settle()

    def _answer(
        self,
        delivery: Delivery,
        request: GenerateRequest,
        images: Callable[[], Sequence[EngineImage]] = tuple,
    ) -> None:
        error = held = None
        try:
            held = self._take(request, images())
        except errors.TurnwireError as refusal:
            error = refusal.info
        except Exception as failure:
            self._log.exception("worker.request_failed", turn=request.turn)
            error = errors.EngineFailed(
                f"the request could not be taken: {type(failure).__name__}"
            ).info
        reply = msgspec.json.encode(GenerateReply(self._process.id, error, held))
        if error is None:
            after_sending(delivery.reply, reply)  # the first token goes first
        else:
            delivery.reply(reply)

    def _take(self, request: GenerateRequest, images: Sequence[EngineImage]) -> int | None:
        """Returns `GenerateReply.held`. Raises TurnwireError to refuse."""
        self._admit(request)
        resume = unpack_ids(request.resume)
        counter = None
        if request.thoughts is not None:
            counter = ThoughtCounter(request.thoughts)
            resume += counter.resume(resume)[
                : max((request.sampling.max_tokens or 0) - len(resume), 0)
            ]
        prompt = request.prompt + pack_ids(resume)
        keyed = with_images(prompt, request.images)
        blocks = self._kv.blocks(keyed, request.cache_salt) if self._kv is not None else None
        held = self._kv.held(keyed, request.cache_salt, blocks) if self._kv is not None else None
        engine_request = EngineRequest(
            id=f"{request.turn}.{request.attempt}",
            token_ids=unpack_array(prompt),
            sampling=self._rest(request.sampling, len(resume), counter)
            if resume
            else request.sampling,
            # The tokenizer may have more ids than the weights have rows; engines use stop ids as
            # indexes.
            stop_ids=[
                token for token in request.stop_ids if token < (self._info.vocab_size or inf)
            ],
            priority=request.priority,
            cache_salt=request.cache_salt,
            guided=_decode_form(request.guided),
            grammar=request.grammar if "grammar" in self._info.features else "",
            resumed=len(resume),
            retain_s=self._retention.seconds(
                request, len(prompt) // 4, held or 0, self._loop.time()
            ),
            session=request.session,
            trace=request.trace,
            block_keys=blocks.keys if blocks is not None else None,
            images=images,
        )
        check(engine_request, self._info)
        if request.parser:
            self._open(request, engine_request, blocks, held, counter)
        elif (
            self._turns or self._engine.load().waiting
        ):  # speculative prefills are for idle workers
            raise errors.Overloaded(
                "this worker has turns to decode", retry_after_s=errors.RETRY_AFTER_S
            )
        else:
            self._engine.open(engine_request, Prefill(partial(self._prefill_failed, request.turn)))
            if self._kv is not None and blocks is not None:
                self._kv.used(blocks)
        return None if self._info.shares_queued else held

    def _prefill_failed(self, turn: str, error: errors.TurnwireError) -> None:
        self._log.info("worker.prefill_failed", turn=turn, error=str(error))

    def _admit(self, request: GenerateRequest) -> None:
        if self._process.draining or not self._engine.healthy():
            raise errors.Unavailable("this worker is going away")
        if self._cancelled.attempt(request.turn) >= request.attempt:
            # rare: a cancellation overtook its request
            raise errors.Unavailable("the turn was cancelled")
        if (
            request.turn in self._turns
            and self._turns[request.turn].stream.attempt >= request.attempt
        ):
            raise errors.Unavailable("this worker has the turn already")
        if request.timeout_s is not None and request.timeout_s <= 0:
            raise errors.TimedOut("the request's deadline has passed", code=errors.DEADLINE_PASSED)
        slots = self._engine.load().slots
        if 0 < slots <= len(self._turns) - self._queue_limit:
            raise errors.Overloaded(
                "all slots of this worker are taken and its queue is full",
                retry_after_s=errors.RETRY_AFTER_S,
            )

    def _open(
        self,
        request: GenerateRequest,
        engine_request: EngineRequest,
        blocks: PromptBlocks | None,
        held: int | None,
        counter: ThoughtCounter | None,
    ) -> None:
        if request.turn in self._turns:
            # rare: another attempt at a turn reaches the worker that decodes it
            self._turns[request.turn].cancel()
        resume = list(engine_request.token_ids[len(request.prompt) // 4 :])
        stream = TokenStream(
            turn=request.turn,
            attempt=request.attempt,
            parser=sys.intern(
                self._shards.choose(request.parser)
            ),  # one object for all its streams: faster lookups
            frontend=request.frontend,
            context=request.context.copy(),  # a view would keep the whole message in memory
            ids=resume,
            held=held or 0,
            prompt_tokens=len(request.prompt) // 4,
            opened_at=time.perf_counter(),
        )
        computes = held is not None and stream.prompt_tokens - held >= request.notice_tokens
        notice = request.notice if computes and not self._info.shares_queued else ""
        stream.on_prefilled = partial(self._prefilled, request.turn, blocks, notice)
        on_end = partial(self._ended, blocks)
        decoding = Decoding(
            stream, schedule=self._outbox.schedule, on_step=self._stepped, on_end=on_end
        )
        scope = self._process.scope(request.trace)
        spans = StreamSpans(scope, len(engine_request.token_ids)) if scope is not None else None
        sink: Sink = decoding
        if counter is not None and request.thoughts is not None:
            limit = request.sampling.max_tokens or 0
            go_on = partial(self._continue, engine_request, request.thoughts.grammar)
            sink = BudgetedTurn(
                decoding, counter, limit, lambda turn: self._loop.call_soon(go_on, turn)
            )
        # Before the stream is scheduled: the frame with the parse context can then have the first
        # token, too.
        try:
            decoding.handle = self._engine.open(engine_request, sink)
        except EngineDied as death:
            raise errors.Unavailable("this worker is going away") from death
        if spans is not None:
            decoding.on_cached, self._spans[decoding] = spans.first, spans
        self._turns[request.turn] = decoding
        if request.timeout_s is not None:
            timer = self._loop.call_later(request.timeout_s, self._deadline_passed, decoding)
            self._deadlines[decoding] = timer
        self._outbox.open(stream)
        self._send(
            stream
        )  # the parse context: if this worker dies in prefill, the shard has the turn's frontend
        self._process.registry.expect("frontend", stream.frontend, self._loop.time())

    def _continue(self, first: EngineRequest, grammar: str, turn: BudgetedTurn) -> None:
        """Has the engine continue a turn after a thought that was ended, as after the death of a
        worker. `first`: the request of this attempt; `grammar`: that of the rest."""
        decoding = turn.decoding
        if decoding.ended:
            return
        output = decoding.stream.ids
        prompt = first.token_ids[: len(first.token_ids) - first.resumed]
        request = msgspec.structs.replace(
            first,
            # the engine may still hold the stopped one under its id
            id=f"{first.id}.{len(output)}",
            token_ids=unpack_array(pack_ids(prompt) + pack_ids(output)),
            sampling=self._rest(first.sampling, len(output) - first.resumed, turn.counter),
            priority=first.priority
            + (CONTINUED_PRIORITY if "priority" in self._info.features else 0.0),
            rest_grammar=grammar if first.grammar else "",
            resumed=len(output),
            block_keys=None,
        )
        try:
            decoding.handle = self._engine.open(request, turn)
        except Exception as failure:
            self._log.exception("worker.request_failed", turn=decoding.stream.turn)
            error = errors.EngineFailed(
                f"the turn could not be continued: {type(failure).__name__}"
            )
            decoding.fail(failure if isinstance(failure, errors.TurnwireError) else error)

    def _rest(self, sampling: Sampling, done: int, counter: ThoughtCounter | None) -> Sampling:
        """The sampling of the rest of a turn, after `done` output tokens."""
        sampling = _remaining(sampling, done)
        if (
            counter is not None and "logit_bias" in self._info.features
        ):  # elsewhere each further thought is ended
            sampling = msgspec.structs.replace(
                sampling, logit_bias={**sampling.logit_bias, **counter.bans}
            )
        return sampling

    # -- a turn goes on, and ends
    # ---------------------------------------------------------------------------------

    def _stepped(self, stream: TokenStream) -> None:
        if stream.sent > stream.resumed:
            self._pacer.send_soon(stream.parser)
        else:
            stream.first_at = stream.first_at or time.perf_counter()
            self._pacer.send_now(stream.parser)
            stream.prefilled(computed=True)

    def _prefilled(
        self, turn: str, blocks: PromptBlocks | None, notice: str, computed: bool
    ) -> None:
        if computed and blocks is not None and self._kv is not None:
            self._kv.used(blocks)
        if notice:  # the first token goes first
            after_sending(self._process.publish, notice, PrefillNotice(turn, computed))

    def _send(self, stream: TokenStream) -> None:
        self._outbox.schedule(stream)
        self._pacer.send_now(stream.parser)

    def _ended(self, blocks: PromptBlocks | None, decoding: Decoding) -> None:
        stream, now = decoding.stream, time.perf_counter()
        if len(stream.ids) > stream.resumed:
            stream.first_at = stream.first_at or now  # the only step had all of it
        self._send(stream)
        broken_off = stream.finish is None or stream.finish.reason in (
            FinishReason.ERROR,
            FinishReason.CANCELLED,
        )
        stream.prefilled(computed=(computed := bool(stream.first_at) or not broken_off))
        self._outbox.ended(stream, self._loop.time())
        self._metrics.ended(stream, now)
        if (timer := self._deadlines.pop(decoding, None)) is not None:
            timer.cancel()
        if (spans := self._spans.pop(decoding, None)) is not None:
            spans.end(stream)
        if self._turns.get(stream.turn) is decoding:
            del self._turns[stream.turn]
        if computed and self._kv is not None and blocks is not None:
            self._kv.ended(blocks, stream.ids[stream.resumed :])
        self._settle()
        if not self._outbox.busy and self._process.draining:
            # a heartbeat makes the shards acknowledge what they have
            self._process.heartbeats.send_soon()

    def _deadline_passed(self, decoding: Decoding) -> None:
        """Ends a turn that still waits for its slot or its prefill. Its frontend cancels one that
        decodes."""
        if not decoding.stream.started:
            self._log.info("worker.deadline_passed", turn=decoding.stream.turn)
            decoding.abandon(errors.TimedOut("the request's deadline passed before it was decoded"))

    def _broken(self, stream: TokenStream) -> None:
        self._log.error("worker.tokens_unsendable", turn=stream.turn, at=len(stream.ids))
        decoding = self._turns.get(stream.turn)
        if decoding is not None and decoding.stream is stream:
            # Not within the drain that calls this: the turn's end is one more thing to send.
            self._loop.call_soon(decoding.abandon, errors.EngineFailed(UNSENDABLE.message))

    def _expire(self, now: float) -> None:
        if not self._process.cut_off:
            self._outbox.expire(now)

    def _credited(self, parser: str, seq: int) -> None:
        self._outbox.credited(parser, seq)
        self._settle()

    def _settle(self) -> None:
        if (
            not self._process.draining
            or self._settled.is_set()
            or self._outbox.busy
            or self._fetches
        ):
            return
        registry = self._process.registry
        for stream in self._outbox.undelivered():
            # If the parser is gone, a living frontend waits for another one.
            if registry.get("parser", stream.parser) or registry.get("frontend", stream.frontend):
                # rare: a worker that leaves still has tokens for another process
                return
        self._settled.set()

    # -- cancellation
    # -----------------------------------------------------------------------------------------------

    def _cancel(self, delivery: Delivery) -> None:
        cancel = _decode_cancel(delivery.data)
        # Noted first, because the request may still be on its way.
        self._cancelled.note(cancel.turn, cancel.attempt)
        if cancel.reason == "unreadable":
            self._report_unreadable(cancel)
        decoding = self._turns.get(cancel.turn)
        if decoding is not None and decoding.stream.attempt <= cancel.attempt:
            arrived = time.perf_counter()
            decoding.cancel()
            self._abort_seconds.observe(time.perf_counter() - arrived)
            tokens = len(decoding.stream.ids)
            self._log.info(
                "worker.cancelled", turn=cancel.turn, reason=cancel.reason, tokens=tokens
            )

    def _report_unreadable(self, cancel: Cancel) -> None:
        """Sends the error to the frontend in place of the shard, which could not read the
        frontend's id."""
        stream = self._outbox.find(cancel.turn, cancel.attempt)
        if stream is not None:
            error = errors.EngineFailed("the output could not be parsed").info
            frame = EventFrame(
                self._process.id, 0, [EventEntry(cancel.turn, cancel.attempt, [Failed(error)])]
            )
            self._process.publish(subjects.events(stream.frontend), frame)

    # -- other processes
    # ----------------------------------------------------------------------------------------------

    def _peer_left(self, heartbeat: Heartbeat) -> None:
        if heartbeat.stage == "parser":
            self._shards.left(heartbeat)
            self._settle()

    def _frontend_gone(self, frontend: str) -> None:
        for decoding in list(self._turns.values()):
            if decoding.stream.frontend == frontend:
                self._log.info(
                    "worker.cancelled", turn=decoding.stream.turn, reason="frontend_gone"
                )
                decoding.cancel()
        self._settle()


def _remaining(sampling: Sampling, resumed: int) -> Sampling:
    """Reduces the limits by the `resumed` output tokens of an earlier attempt."""
    most, least = sampling.max_tokens or 0, sampling.min_tokens
    return msgspec.structs.replace(
        sampling,
        max_tokens=max(most - resumed, 0),
        min_tokens=None if least is None else max(least - resumed, 0),
    )


async def run(config: WorkerConfig) -> None:
    """Loads the engine, serves until the process is stopped, drains.

    Raises:
        ConfigError: there is no engine of this name.
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
        raise errors.Invalid(
            f"the {config.engine} engine cannot serve {config.model}: {error}"
        ) from error
    try:
        process.log.info(
            "worker.loaded",
            seconds=round(time.monotonic() - started, 2),
            max_model_len=info.max_model_len,
            slots=info.slots,
            features=sorted(info.features),
            no_vision=info.lacking.get(VISION),
        )
        await process.connect()
        worker = Worker(process, engine, info, config.model_name, config.queue_limit)
        await worker.start()
        process.spawn(worker.watch(), "watch")
        relax_gc_and_trim_heap()
        process.serve(worker)
        await process.run()
    finally:
        await engine.stop(config.drain_s)
        await asyncio.sleep(
            EVERY_S
        )  # for the last lines of the log: the process ends without exit handlers
