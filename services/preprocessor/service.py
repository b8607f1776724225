"""The preprocessor process: receives turn requests and sends each as a generate request to one
worker.

The path of a turn is `Preprocessor._take_turn`: `Preparation` makes its prompt (on the event loop
if that is short work, else in a small thread pool), and `WorkerSender` sends it to the best worker
that takes it, perhaps after a wait for a turn that begins alike. A frontend receives `Accepted`
from the preprocessor when the request has arrived, and later at most a refusal, before it has sent
anything to its client; the parser reports that a worker has the turn.
"""

import asyncio
import os
from functools import partial
from time import perf_counter

import msgspec

from schemas import subjects
from schemas.control import Cancel, Load
from schemas.errors import Invalid
from schemas.requests import Accepted, TurnRequest
from services.ledger.signer import EntrySigner
from services.ledger.turn_ledger import Ledger
from services.preprocessor.changes.checks import PromptChecks
from services.preprocessor.ledger_reader import BusLedgerReader, LedgerReader
from services.preprocessor.model.ledger_model import open_ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.next_prompts import NextPrompts
from services.preprocessor.observer import PreprocessorObserver, warn_of_limits
from services.preprocessor.open_work import OpenWork
from services.preprocessor.prefilled_next_prompts import PrefilledNextPrompts
from services.preprocessor.preparation import Preparation
from services.preprocessor.prepared_turn import deadline_of, seconds_left
from services.preprocessor.refusals import RefusalSender
from services.preprocessor.routing.holding import Holding
from services.preprocessor.routing.kv_view import KvView
from services.preprocessor.routing.leads import Leads
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.router import Router
from services.preprocessor.routing.sending import WorkerSender
from services.preprocessor.routing.worker_links import WorkerLinks
from services.preprocessor.tokenize_service import TokenizeService
from services.runtime.config.base import MIB
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.nats.bus import Delivery
from services.runtime.nats.connection import Subscription
from services.runtime.nats.requests import after_sending
from services.runtime.observability.memory import relax_gc_and_trim_heap
from services.runtime.observability.metrics import CountCollector, Reading
from services.runtime.presence.heartbeats import Service
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket, ledger_bucket
from services.runtime.storage.seal import Sealer

DRAIN_DELAY_S = 0.05
"""Time in which requests still arrive that were sent before the heartbeat with `draining`."""

_encode = msgspec.json.Encoder().encode
_decode_turn = msgspec.json.Decoder(TurnRequest).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode


class Preprocessor(Service):
    """One model's preprocessor on the bus."""

    def __init__(
        self,
        process: Process,
        setup: ModelSetup,
        sealer: Sealer,
        config: PreprocessorConfig,
        ledger: LedgerReader,
    ) -> None:
        self.models = [setup.card]
        self._process = process
        self._accepted = _encode(Accepted(process.id))
        self._open = OpenWork(process)
        self._observer = PreprocessorObserver(process, ledger)
        self._preparation = Preparation(process, setup, sealer, config, ledger)

        leads = Leads(config.hold_tokens)
        router = Router(
            config.router_overlap_weight,
            config.router_load_tokens,
            leads.waiting,
            config.router_offload_weight,
        )
        self._kv = KvView(process, setup.card.name)
        placement = Placement(process, setup.card.name, router, self._kv)

        self._checks = PromptChecks(
            process,
            self._preparation.threads,
            setup.encoder,
            setup.template.renderer,
            config.prompt_cache_mb * MIB,
        )
        self._questions = TokenizeService(process, self._preparation, self._open)

        next_prompts = NextPrompts()
        if config.enable_ledger:
            next_prompts = PrefilledNextPrompts(
                process, placement, self._kv, self._preparation, ledger
            )
        self.holding = Holding(process, placement, leads)
        self._workers = WorkerSender(WorkerLinks(process), placement, self.holding, next_prompts)
        self._refusals = RefusalSender(process)

        self._ledger = ledger
        self._subscriptions: list[Subscription] = []
        """The subscriptions to new work."""
        refusals = Reading("Texts that fastokens refused.", setup.encoder, "failures")
        process.metrics.register(CountCollector({"turnwire_tokenizer_refusals_total": refusals}))

    def _on_turn(self, delivery: Delivery) -> None:
        request = _decode_turn(delivery.data)
        if self._open.supersedes(request):
            self._open.start_turn(request, self._take_turn(request, len(delivery.data)))
        after_sending(delivery.reply, self._accepted)  # the worker's request goes first

    async def _take_turn(self, request: TurnRequest, size: int) -> None:
        """One turn: from its conversation to the worker that decodes it, or to a refusal."""
        observer = self._observer.observe_attempt(request)
        deadline = deadline_of(request, asyncio.get_running_loop().time())
        try:
            await self._still_wanted(deadline)
            turn = await self._preparation.prepare_turn(
                request, observer, size=size, deadline=deadline
            )
            await self._workers.send_turn(turn, observer)
        except asyncio.CancelledError:
            observer.cancelled()
            raise
        except Exception as error:
            await self._refusals.send_refusal(request, observer.failed(error))
        else:
            self._checks.check_prompt(request.conversation, turn.prompt)

    async def _still_wanted(self, deadline: float) -> None:
        """Waits while the process is cut off, since the cancellation of a request may follow it.
        Raises TimedOut where the client no longer waits."""
        await self._process.wait_until_attached()
        seconds_left(deadline, asyncio.get_running_loop().time())

    def _on_cancel(self, delivery: Delivery) -> None:
        self._open.cancel(_decode_cancel(delivery.data))

    async def start(self) -> None:
        """Subscribes to requests."""
        model = self.models[0].name
        self._kv.start()
        await self._ledger.start()
        await self._process.subscribe(subjects.cancel(model), self._on_cancel)
        turns = await self._process.subscribe(subjects.turn(model, self._process.id), self._on_turn)
        self._subscriptions = [turns, *await self._questions.start()]

    def load(self) -> Load:
        """Returns the number of turns without a worker, and the heaviest tools."""
        return Load(running=self._open.turns, tools=self._observer.tools.at(perf_counter()))

    async def drain(self) -> None:
        """Takes no new requests; returns when every turn has a worker and every other request an
        answer."""
        await asyncio.sleep(DRAIN_DELAY_S)
        for subscription in self._subscriptions:
            await subscription.stop()
        await self._open.wait_until_done()
        self._preparation.threads.close()


async def _open_ledger(
    process: Process, setup: ModelSetup, config: PreprocessorConfig
) -> LedgerReader:
    if not config.enable_ledger:
        return LedgerReader(Ledger(setup.encoder))
    room = config.ledger_mb * MIB
    make = partial(open_ledger, setup, entry_bytes=room, prompt_bytes=room)
    ledger = await asyncio.get_running_loop().run_in_executor(None, make)
    signer = EntrySigner.load(config.seal_key_file, config.model_name)
    bucket: Bucket | None = None
    if config.ledger_store_mb:
        bucket = Bucket(process.bus, ledger_bucket(config), process.log)
    return BusLedgerReader(process, ledger, signer, bucket)


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
        template=setup.template.renderer.engine,
        template_reason=setup.template.renderer.reason,
        max_model_len=setup.card.max_model_len,
        vision=setup.images is not None or setup.no_vision_reason,
    )
    warn_of_limits(setup.card, process.log)
    await process.connect()
    sealer = Sealer.load(config.seal_key_file, config.model_name)
    ledger = await _open_ledger(process, setup, config)
    preprocessor = Preprocessor(process, setup, sealer, config, ledger)
    await preprocessor.start()
    relax_gc_and_trim_heap()
    process.serve(preprocessor)
    await process.run()
