"""The preprocessor process: receives turn requests and sends each as a generate request to one
worker.

The path of a turn: `_turn` accepts it, `Preparation` makes its prompt (on the event loop if that is
short work, else in a small thread pool), `_dispatch` sends it to the best worker that takes it. A
frontend receives only refusals from the preprocessor, before it has sent anything to its client;
the parser reports that a worker has the turn.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.control import Cancel, Heartbeat, Load
from schemas.errors import (
    MEDIA_MISSING,
    RETRY_AFTER_S,
    ContextOverflow,
    EngineFailed,
    ErrorInfo,
    Invalid,
    Overloaded,
    TurnwireError,
    Unavailable,
    raised,
)
from schemas.events import Failed
from schemas.frames import (
    Accepted,
    EventEntry,
    EventFrame,
    GenerateReply,
    GenerateRequest,
    TurnRequest,
    pack_ids,
)
from services.guides.promises import promises
from services.ledger.signer import EntrySigner
from services.preprocessor.fingerprints import Fingerprints
from services.preprocessor.generate import (
    generate_request,
    ledger_context_of,
    thought_budget,
    turn_guide,
)
from services.preprocessor.holding import Holding
from services.preprocessor.ledger_reader import LedgerReader, open_ledger
from services.preprocessor.model import ModelSetup
from services.preprocessor.prefill import PendingTurn, Prefills
from services.preprocessor.preparation import Preparation, seconds_left
from services.preprocessor.prompt import Prompt, no_step
from services.preprocessor.prompt_changes import PromptChangeReporter
from services.preprocessor.routing.leads import LongPrompt
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.router import Router
from services.preprocessor.tokenize_service import TokenizeService
from services.preprocessor.turn_spans import TurnSpans
from services.runtime.bus import Delivery, Subscription
from services.runtime.config import MIB, PreprocessorConfig
from services.runtime.heartbeats import Service
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.observability.metrics import CountCollector, register, step_histogram
from services.runtime.process import Process
from services.runtime.recent_turns import RecentTurns
from services.runtime.requests import after_sending
from services.runtime.storage.kv import Bucket, ledger_bucket
from services.runtime.storage.seal import Sealer
from services.tokenization.block_keys import with_images

TAKE_TIMEOUT_S = 2.0
"""After this time without an answer the worker may have the turn or not, and the attempt fails."""
IMAGES_TIMEOUT_S = 10.0
"""This time for a turn with images: the worker fetches them first, in 8 s at most."""
UNANSWERED_REQUESTS = 7
"""Requests on their way to one worker; others wait, in order. A message may have 8 MB, and NATS
disconnects a client for which 64 MB wait in the server."""
UNANSWERED_IMAGES = 3
"""Requests with images among them: the worker answers those later, and other turns do not wait for
that."""
REFUSE_TIMEOUT_S = 1.0
REFUSE_S = 60.0
"""How long a refusal is sent again: as long as a frontend waits for a prompt."""
DRAIN_DELAY_S = 0.05
"""Time in which requests still arrive that were sent before the heartbeat with `draining`."""

_encode = msgspec.json.Encoder().encode
_decode_turn = msgspec.json.Decoder(TurnRequest).decode
_decode_reply = msgspec.json.Decoder(GenerateReply).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode


class Preprocessor(Service):
    """One model's preprocessor on the bus."""

    def __init__(
        self,
        process: Process,
        setup: ModelSetup,
        sealer: Sealer,
        config: PreprocessorConfig,
        ledger: LedgerReader | None = None,
    ) -> None:
        timeout_s = config.render_timeout_s
        self._preparation = Preparation(
            process, setup, sealer, config.threads, ledger, render_timeout_s=timeout_s
        )
        self._ledger = ledger
        self._prompt_changes = PromptChangeReporter(
            process.log, process.metrics, config.prompt_cache_mb * MIB
        )
        now, room = asyncio.get_running_loop().time, config.prompt_cache_mb * MIB
        self._fingerprints = Fingerprints(room, now, strip=setup.strip_preamble)
        self._process = process
        self._setup = setup
        self._model = setup.card.name
        self._log = process.log
        self._accepted = _encode(Accepted(process.id))
        router = Router(config.router_overlap_weight, config.router_load_tokens)
        self._placement = Placement(process, self._model, router)
        self._holding = Holding(process, self._placement, config.hold_tokens)
        self._unanswered = defaultdict[str, asyncio.Semaphore](
            partial(asyncio.Semaphore, UNANSWERED_REQUESTS)
        )
        self._unanswered_images = defaultdict[str, asyncio.Semaphore](
            partial(asyncio.Semaphore, UNANSWERED_IMAGES)
        )
        """Bounds the requests that each worker has not answered."""
        process.registry.on_leave(self._process_left)
        self._turns: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """The newest attempt, and its task, of each turn without a worker."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = RecentTurns()
        self._idle = asyncio.Event()
        self._idle.set()
        self._prepare_s = step_histogram(
            "prepare", "From a turn's arrival to its prompt's ids.", process.metrics
        )
        self._place_s = step_histogram(
            "place", "From a prompt's ids to the worker that takes the turn.", process.metrics
        )
        self._questions = TokenizeService(process, self._preparation, self._begin)
        self._work: list[Subscription] = []
        self.models = [setup.card]
        text = "Texts that fastokens refused."
        counts = {"turnwire_tokenizer_refusals_total": (text, lambda: setup.encoder.failures)}
        register(process.metrics, CountCollector(counts))
        self._prefills: Prefills | None = None
        if ledger is not None:
            self._prefills = Prefills(process, self._placement, self._preparation, ledger.ledger)
            ledger.on_entry.append(self._prefills.ended)

    async def start(self) -> None:
        """Subscribes to requests."""
        subscribe, model, own = self._process.subscribe, self._model, self._process.id
        self._placement.start()
        if self._ledger is not None:
            await self._ledger.start()
        await subscribe(subjects.cancel(model), self._cancel)
        self._work = [
            await subscribe(subjects.turn(model, own), self._turn),
            *await self._questions.start(),
        ]

    def load(self) -> Load:
        """Returns the number of turns without a worker."""
        return Load(running=len(self._turns))

    async def drain(self) -> None:
        """Takes no new requests; returns when every turn has a worker and every other request an
        answer."""
        await asyncio.sleep(DRAIN_DELAY_S)
        for subscription in self._work:
            await subscription.stop()
        await self._idle.wait()
        self._preparation.close()

    def _turn(self, delivery: Delivery) -> None:
        request = _decode_turn(delivery.data)
        present, _ = self._turns.get(request.turn, (0, None))
        if max(present, self._cancelled.attempt(request.turn)) < request.attempt:
            task = self._begin(self._prepare(request, len(delivery.data)), request.turn)
            self._turns[request.turn] = (request.attempt, task)
            task.add_done_callback(partial(self._prepared, request.turn))
        after_sending(delivery.reply, self._accepted)  # the worker's request goes first

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Starts a task that a drain waits for."""
        task = self._process.spawn(work, name)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()

    def _prepared(self, turn: str, task: asyncio.Task[None]) -> None:
        if self._turns.get(turn, (0, None))[1] is task:
            del self._turns[turn]

    async def _prepare(self, request: TurnRequest, size: int) -> None:
        now = asyncio.get_running_loop().time
        arrived = perf_counter()  # the loop's time has milliseconds
        deadline = None if request.timeout_s is None else now() + request.timeout_s
        scope = self._process.scope(request.trace)
        spans = TurnSpans(scope, request.attempt) if scope is not None else None
        try:
            await (
                self._process.attached()
            )  # else the cancellation of this request may still follow it
            seconds_left(deadline, now())
            on_step = spans.step if spans is not None else no_step
            prompt = await self._preparation.prompt(
                request.conversation, limit=True, size=size, on_step=on_step
            )
            self._prepare_s.observe((prepared := perf_counter()) - arrived)
            if spans is not None:
                spans.prepared(prompt)
            try:
                await self._dispatch(request, prompt, deadline, spans)
            finally:
                if self._ledger is not None and prompt.found is not None:
                    self._ledger.count(prompt.found)
            self._place_s.observe(perf_counter() - prepared)
        except TurnwireError as error:
            if spans is not None:
                spans.failed(error.info.kind)
            await self._refuse(request, error.info)
            return
        except asyncio.CancelledError:
            if spans is not None:
                spans.cancelled()
            raise
        except Exception as error:
            self._log.exception("preprocessor.turn_failed", turn=request.turn)
            failure = EngineFailed(f"the prompt could not be prepared: {type(error).__name__}")
            if spans is not None:
                spans.failed(failure.info.kind)
            await self._refuse(request, failure.info)
            return
        self._prompt_changes.report(request.conversation, prompt)
        self._preparation.check(prompt)

    async def _dispatch(
        self, request: TurnRequest, prompt: Prompt, deadline: float | None, spans: TurnSpans | None
    ) -> None:
        """Sends the turn to the best worker that takes it."""
        refusal: ErrorInfo | None = None
        packed = pack_ids(prompt.ids)
        grammar = ""
        conversation = request.conversation
        thoughts = thought_budget(conversation, prompt, self._setup)
        if self._placement.can_guide() and promises(conversation):
            guide = partial(turn_guide, conversation, prompt, self._setup)
            grammar = await self._preparation.run(guide)
            if thoughts is not None:
                thoughts = replace(
                    thoughts, grammar=await self._preparation.run(partial(guide, rest=True))
                )
        comparison = self._fingerprints.compare(request.turn, conversation, prompt)
        generate = generate_request(
            request, prompt, packed, self._setup, grammar, thoughts=thoughts, comparison=comparison
        )
        keyed = with_images(packed, prompt.images)
        long = self._holding.prompt(request, keyed)
        try:
            workers = await self._holding.workers(request, keyed, long, deadline)
            if spans is not None and long is not None and long.held_for:
                spans.held(long.held_for, long.held_s)
            for worker in workers:
                shard = self._placement.shard()
                salt = self._placement.salt(conversation)
                generate = replace(generate, parser=shard, cache_salt=salt)
                self._placement.router.assigned(worker, shard)
                self._expect(request, prompt, worker)
                generate = self._holding.begin(long, worker, generate)
                refusal = await self._send(generate, worker, long, deadline)
                if refusal is None:
                    self._placement.taken(worker, keyed, conversation)
                    if spans is not None:
                        spans.placed(worker, shard)
                    return
                self._placement.router.returned(worker, shard)
                # rare: a worker did not take a turn
                if spans is not None:
                    spans.refused(worker, refusal.kind)
                retried = isinstance(raised(refusal), Overloaded | Unavailable | ContextOverflow)
                if not retried or refusal.code == MEDIA_MISSING:
                    break  # an error of the request itself: no other worker would take it either
        finally:
            self._holding.left(long)
        assert refusal is not None  # `workers` returns at least one
        raise raised(refusal)

    async def _send(
        self,
        generate: GenerateRequest,
        worker: str,
        long: LongPrompt | None,
        deadline: float | None,
    ) -> ErrorInfo | None:
        """Sends a turn to a worker. Returns why the worker did not take it; None: it has."""
        reply: GenerateReply | None = None
        try:
            images = self._unanswered_images[worker] if generate.images else nullcontext()
            async with images, self._unanswered[worker]:
                if self._process.registry.get("worker", worker) is None:
                    raise Unavailable("it left while the turn waited")
                generate = replace(
                    generate, timeout_s=seconds_left(deadline, asyncio.get_running_loop().time())
                )
                data = self._placement.encode(generate, worker)
                timeout_s = IMAGES_TIMEOUT_S if generate.images else TAKE_TIMEOUT_S
                answer = await self._process.bus.request(
                    subjects.generate(self._model, worker), data, timeout_s
                )
            reply = _decode_reply(answer)
        except Unavailable:  # the worker certainly does not have the turn
            # rare: the worker that a turn was sent to is gone
            return Unavailable(
                "the worker that was asked is gone", retry_after_s=RETRY_AFTER_S
            ).info
        finally:
            self._holding.answered(long, reply)
        return reply.error

    def _expect(self, request: TurnRequest, prompt: Prompt, worker: str) -> None:
        """Registers a turn with a client that requested a prefill of the next prompt. Called before
        the worker has the turn: a short turn may have ended when the acceptance arrives."""
        conversation = request.conversation
        context = ledger_context_of(prompt, conversation)
        if (
            self._prefills is not None
            and context is not None
            and conversation.hints.speculative_prefill
        ):
            self._prefills.expect(
                context, PendingTurn(request.turn, worker, conversation, prompt.tools)
            )

    async def _refuse(self, request: TurnRequest, error: ErrorInfo) -> None:
        """Sends the error to the frontend until the frontend acknowledges it, or is gone."""
        frame = EventFrame(
            self._process.id, 0, [EventEntry(request.turn, request.attempt, [Failed(error)])]
        )
        registry = self._process.registry
        until = asyncio.get_running_loop().time() + REFUSE_S
        while asyncio.get_running_loop().time() < until:
            try:
                await self._process.bus.request(
                    subjects.events(request.frontend), _encode(frame), REFUSE_TIMEOUT_S
                )
                return
            except Unavailable:
                if not self._process.cut_off and registry.get("frontend", request.frontend) is None:
                    return
                await asyncio.sleep(REFUSE_TIMEOUT_S)  # one of the two is reconnecting
            except TurnwireError as failure:
                self._log.warning(
                    "preprocessor.refusal_not_delivered", turn=request.turn, error=str(failure)
                )

    def _process_left(self, heartbeat: Heartbeat) -> None:
        self._unanswered.pop(heartbeat.id, None)
        self._unanswered_images.pop(heartbeat.id, None)

    def _cancel(self, delivery: Delivery) -> None:
        cancel = _decode_cancel(delivery.data)
        self._cancelled.note(cancel.turn, cancel.attempt)
        attempt, task = self._turns.get(cancel.turn, (0, None))
        if task is not None and attempt <= cancel.attempt:
            # rare: a turn is cancelled while its prompt is made
            task.cancel()


async def _open_ledger(
    process: Process, setup: ModelSetup, sealer: Sealer, config: PreprocessorConfig
) -> LedgerReader:
    room = config.ledger_mb * MIB
    make = partial(open_ledger, setup, entry_bytes=room, prompt_bytes=room)
    ledger = await asyncio.get_running_loop().run_in_executor(None, make)
    signer = EntrySigner.load(config.seal_key_file, config.model_name)
    bucket = (
        Bucket(process.bus, ledger_bucket(config), process.log) if config.ledger_store_mb else None
    )
    return LedgerReader(process, ledger, signer, sealer, bucket)


async def run(config: PreprocessorConfig) -> None:
    """Loads the model's tokenizer and template, serves until the process is stopped, drains.

    Raises:
        TurnwireError: the bus could not be reached, or the model's files not be read.
        EngineFailed: the connection to the bus was lost permanently.
    """
    # With texts of 64 KB or more fastokens starts threads: they cost 35 MB and 16 ms with the first
    # such text, and save 0.2 of 0.9 ms with 240 KB of source code.
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    process = Process("preprocessor", config)
    try:
        setup = await asyncio.get_running_loop().run_in_executor(None, ModelSetup.load, config)
    except ValueError as error:
        raise Invalid(str(error)) from error
    process.log.info(
        "preprocessor.loaded",
        model=setup.card.name,
        family=setup.family.title,
        evidence=setup.evidence,
        tokenizer=setup.encoder.name,
        tokenizer_reason=setup.encoder.reason,
        max_model_len=setup.card.max_model_len,
        vision=setup.images is not None or setup.blindness,
    )
    await process.connect()
    sealer = Sealer.load(config.seal_key_file, config.model_name)
    ledger = await _open_ledger(process, setup, sealer, config) if config.enable_ledger else None
    preprocessor = Preprocessor(process, setup, sealer, config, ledger)
    await preprocessor.start()
    relax_gc_and_trim_heap()
    process.serve(preprocessor)
    await process.run()
