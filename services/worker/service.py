"""The worker process, which connects one engine to the bus.

The path of a turn: `Worker._take_turn` refuses a request at once, or has the engine open it with a
sink (`turn_opener.py`); the engine then puts each step's tokens into the turn's token stream
(`output/decoding.py`), and the outbox sends what is ready to the parser shards, one frame per shard
and tick (`output/token_output.py`). Nothing awaits, so that a turn needs no task, except one with
images, which are fetched first. Cancellation closes the engine's handle.
"""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from schemas import errors, subjects
from schemas.control import THINKING_BUDGET, Cancel, Load, ModelCard
from schemas.frames import EventFrame
from schemas.requests import GenerateReply, GenerateRequest, decode_generate
from services.runtime.caches.recent_turns import RecentTurns
from services.runtime.config.masking import mask_passwords
from services.runtime.config.stages import WorkerConfig
from services.runtime.nats.bus import Delivery
from services.runtime.nats.requests import after_sending
from services.runtime.observability.log_lines import EVERY_S
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.presence.heartbeats import LinkStates, Service
from services.runtime.process import Process
from services.worker.engine import (
    Engine,
    EngineImage,
    EngineInfo,
    UpdatableEngine,
)
from services.worker.engine_checks import check_images
from services.worker.engine_controls import EngineControls
from services.worker.engine_requests import DecodingPlan, offered_adapters, prompt_tokens
from services.worker.engines.registry import open_engine
from services.worker.kv.publisher import open_publisher
from services.worker.observer import WorkerObserver
from services.worker.output.token_output import TokenOutput
from services.worker.stored_images import StoredImages
from services.worker.turn_opener import TurnOpener

HEALTH_INTERVAL_S = 0.5

_decode_cancel = msgspec.json.Decoder(Cancel).decode


class Worker(Service):
    """One engine on the bus: requests come in, and tokens go out to the parser shards."""

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
        self._loop = asyncio.get_running_loop()
        self._observer = WorkerObserver(process)
        self._output = TokenOutput(process, model, self._observer)
        self._turns = self._output.turns
        self._kv = open_publisher(process, engine, info, model, self.follow_engine)
        self._opener = TurnOpener(
            process, engine, info, kv=self._kv, turns=self._turns, observer=self._observer
        )
        self._images = StoredImages(process)
        self._cancelled = RecentTurns()
        self.models = [_model_card(info, model, offered_adapters(engine, info))]

    # -- a turn

    def _take_turn(self, request: GenerateRequest, images: Sequence[EngineImage]) -> int | None:
        """One turn: from a request to the engine, which then puts tokens into the turn's stream.

        Returns `GenerateReply.expected_cached`. Raises TurnwireError to refuse.
        """
        self._check_worker(request)
        plan = self._opener.plan(request, images)
        if request.is_prefill:
            self._prefill(plan)
        else:
            self._cancel_earlier_attempt(request)
            decoding = self._opener.open(plan)
            self._output.add(decoding, request.parser, request.timeout_s)
            self._process.registry.expect_heartbeats(
                "frontend", request.frontend, self._loop.time()
            )
        return plan.blocks.cached if self._opener.holds_help else None

    def _check_worker(self, request: GenerateRequest) -> None:
        """Raises TurnwireError if this worker does not take the turn now."""
        if self._process.draining or not self._engine.healthy():
            raise errors.Unavailable("this worker is going away")
        if self._cancelled.attempt(request.turn) >= request.attempt:
            # rare: a cancellation overtook its request
            raise errors.Unavailable("the turn was cancelled")
        newest = self._turns.find(request.turn)
        if newest is not None and newest.stream.attempt >= request.attempt:
            raise errors.Unavailable("this worker has the turn already")
        if request.adapter and request.adapter not in offered_adapters(self._engine, self._info):
            # rare: it was unloaded a moment ago
            raise errors.NotFound(f"model: {self._model}:{request.adapter}")
        if request.timeout_s is not None and request.timeout_s <= 0:
            raise errors.TimedOut("the request's deadline has passed", code=errors.DEADLINE_PASSED)
        slots = self._engine.load().slots
        if 0 < slots <= len(self._turns) - self._queue_limit:
            raise errors.Overloaded(
                "all slots of this worker are taken and its queue is full",
                retry_after_s=errors.RETRY_AFTER_S,
            )

    def _prefill(self, plan: DecodingPlan) -> None:
        """Has the engine compute a prompt that no turn has requested yet."""
        if self._turns or self._engine.load().waiting:  # only idle workers do
            raise errors.Overloaded(
                "this worker has turns to decode", retry_after_s=errors.RETRY_AFTER_S
            )
        self._opener.open_prefill(plan)

    def _cancel_earlier_attempt(self, request: GenerateRequest) -> None:
        earlier = self._turns.find(request.turn)
        if earlier is not None:
            # rare: another attempt at a turn reaches the worker that decodes it
            earlier.cancel()

    # -- requests and their answers

    def _on_request(self, delivery: Delivery) -> None:
        request = decode_generate(delivery.data)
        if request.images:
            task = self._loop.create_task(self._answer_with_images(delivery, request))
            self._output.add_request(task)
        else:
            self._answer(delivery, request, ())

    async def _answer_with_images(self, delivery: Delivery, request: GenerateRequest) -> None:
        arrived = self._loop.time()
        try:
            images = await self._fetch(request)
        except Exception as failure:
            self._refuse(delivery, request, failure)
            return
        if request.timeout_s is not None:
            left_s = request.timeout_s - (self._loop.time() - arrived)
            request = msgspec.structs.replace(request, timeout_s=left_s)
        self._answer(delivery, request, images)

    async def _fetch(self, request: GenerateRequest) -> Sequence[EngineImage]:
        self._check_worker(request)
        check_images(request.images, prompt_tokens(request), self._info)
        data = await self._images.read(request.images)
        return [
            EngineImage(image.hash, image.at, image.tokens, data[image.hash])
            for image in request.images
        ]

    def _answer(
        self, delivery: Delivery, request: GenerateRequest, images: Sequence[EngineImage]
    ) -> None:
        try:
            expected_cached = self._take_turn(request, images)
        except Exception as failure:
            self._refuse(delivery, request, failure)
        else:
            reply = GenerateReply(self._process.id, expected_cached=expected_cached)
            after_sending(delivery.reply, msgspec.json.encode(reply))  # the first token goes first

    def _refuse(self, delivery: Delivery, request: GenerateRequest, failure: Exception) -> None:
        what = "the request could not be taken"
        error = self._observer.failure(request.turn, failure, what)
        delivery.reply(msgspec.json.encode(GenerateReply(self._process.id, error.info)))

    # -- cancellation

    def _on_cancel(self, delivery: Delivery) -> None:
        cancel = _decode_cancel(delivery.data)
        # Noted first, because the request may still be on its way.
        self._cancelled.note(cancel.turn, cancel.attempt)
        if cancel.reason == "unreadable":
            self._report_unreadable(cancel)
        decoding = self._turns.find(cancel.turn)
        if decoding is not None and decoding.stream.attempt <= cancel.attempt:
            arrived = time.perf_counter()
            decoding.cancel()
            abort_s = time.perf_counter() - arrived
            self._observer.cancelled(decoding.stream, cancel.reason, abort_s)

    def _report_unreadable(self, cancel: Cancel) -> None:
        """Sends the error to the frontend in place of the shard, which could not read the
        frontend's id."""
        stream = self._output.find_stream(cancel.turn, cancel.attempt)
        if stream is not None:
            error = errors.EngineFailed("the output could not be parsed").info
            frame = EventFrame.refusal(self._process.id, cancel.turn, cancel.attempt, error)
            self._process.publish(subjects.events(stream.frontend), frame)

    # -- the process

    async def start(self) -> None:
        """Subscribes to requests."""
        info = self._info
        if info.full_len is not None and info.max_model_len < info.full_len:
            self._observer.window_reduced(info)
        await self._output.start()
        cancel = subjects.cancel(self._model)
        generate = subjects.generate(self._model, self._process.id)
        await self._process.subscribe(cancel, self._on_cancel)
        await self._process.subscribe(generate, self._on_request)
        await self._kv.start()

    def load(self) -> Load:
        """Returns the engine's load."""
        return self._engine.load()

    def links(self) -> LinkStates:
        """Returns the links to the parser shards."""
        return self._output.links()

    async def drain(self) -> None:
        """Returns when every turn has ended and its shard has all of its tokens."""
        await self._output.drain()

    async def watch(self) -> None:
        """Follows the engine's adapters and its weights, which also others may change. Ends the
        process when the engine has died, also if no turn was open to report it."""
        # An engine that dies sends no event. The errors of its turns must be sent before the
        # process ends.
        while self._engine.healthy() or self._turns:
            self.follow_engine()
            await asyncio.sleep(HEALTH_INTERVAL_S)
        self._process.stop(failure=f"the engine died: {self._engine.death()}")

    def follow_engine(self) -> None:
        """Describes the engine as it is now: its adapters, its weights, and whether its blocks are
        reported. With other weights, turns that have not started are opened again."""
        card = self.models[0]
        adapters = offered_adapters(self._engine, self._info)
        version = card.weights_version
        if isinstance(self._engine, UpdatableEngine):
            version = self._engine.weights_version
        block_tokens = card.block_tokens if self._kv.predicts else 0
        self.models = [
            msgspec.structs.replace(
                card, adapters=adapters, weights_version=version, block_tokens=block_tokens
            )
        ]
        if adapters != card.adapters:
            self._observer.adapters_changed(adapters)
        if version != card.weights_version:
            self._opener.open_waiting_again()


def _model_card(info: EngineInfo, model: str, adapters: list[str]) -> ModelCard:
    return ModelCard(
        name=model,
        max_model_len=info.max_model_len,
        created=int(time.time()),
        features=sorted(info.features | {THINKING_BUDGET}),
        engine=info.name,
        block_tokens=info.block_tokens or 0,
        raw_prompts=True,
        shares_queued=info.shares_queued,
        adapters=adapters,
    )


async def _load(engine: Engine, config: WorkerConfig) -> EngineInfo:
    """Starts the engine. Raises Invalid if it cannot serve the model."""
    try:
        return await engine.start()
    except (ImportError, ValueError) as error:
        raise errors.Invalid(
            f"the {config.engine} engine cannot serve {config.model}: {error}"
        ) from error


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
    process.log.info(
        "worker.loading",
        engine=config.engine,
        model=config.model,
        server=mask_passwords(config.engine_url) if config.engine_url else None,
    )
    info = await _load(engine, config)
    try:
        process.log.info(
            "worker.loaded",
            seconds=round(time.monotonic() - started, 2),
            max_model_len=info.max_model_len,
            slots=info.slots,
            features=sorted(info.features),
            lacking=dict(info.lacking),
        )
        await process.connect()
        worker = Worker(process, engine, info, config.model_name, config.queue_limit)
        await worker.start()
        controls = EngineControls(
            process, engine, info.name, config.weights_dir, worker.follow_engine
        )
        await controls.start(config.model_name)
        process.spawn(worker.watch(), "watch")
        relax_gc_and_trim_heap()
        process.serve(worker)
        await process.run()
    finally:
        await engine.stop(config.drain_s)
        # For the last lines of the log: the process ends without exit handlers.
        await asyncio.sleep(EVERY_S)
