"""Has the engine open turns, and open those again that have not started when its weights change."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from schemas import errors
from schemas.requests import GenerateRequest
from services.runtime.process import Process
from services.worker.engine import Engine, EngineDied, EngineImage, EngineInfo, Sink
from services.worker.engine_requests import DecodingPlan, EngineRequests
from services.worker.kv.publisher import Kv
from services.worker.observer import WorkerObserver
from services.worker.output.decoding import Decoding, Decodings
from services.worker.output.prefill_report import PrefillReporter, PrefillSink
from services.worker.output.token_stream import TokenStream
from services.worker.thinking.budgeted_turn import BudgetedTurn


class TurnOpener:
    """The way of turns into one engine."""

    def __init__(
        self,
        process: Process,
        engine: Engine,
        info: EngineInfo,
        *,
        kv: Kv,
        turns: Decodings,
        observer: WorkerObserver,
    ) -> None:
        self._process = process
        self._engine = engine
        self._shares_queued = info.shares_queued
        self._kv = kv
        self._turns = turns
        self._observer = observer
        self._requests = EngineRequests(engine, info, kv)
        self._loop = asyncio.get_running_loop()

    def plan(self, request: GenerateRequest, images: Sequence[EngineImage]) -> DecodingPlan:
        """Plans an attempt. Raises as `EngineRequests.plan`."""
        return self._requests.plan(request, images, self._loop.time())

    def open(self, plan: DecodingPlan) -> Decoding:
        """Has the engine open a turn, before its stream is scheduled: the frame with the parse
        context can then have the first token, too. Raises as `Engine.open`, and Unavailable."""
        request = plan.request
        stream = TokenStream(
            turn=request.turn,
            attempt=request.attempt,
            frontend=request.frontend,
            context=request.context.copy(),  # a view would keep the whole message in memory
            ids=list(plan.resume),
            expected_cached=plan.blocks.cached or 0,
        )
        notice = request.notice if self._is_awaited(plan) else ""
        prefill = PrefillReporter(self._process, self._kv, plan, plan.blocks, notice)
        observer = self._observer.open(plan.prompt_tokens, len(plan.first.token_ids), request.trace)
        decoding = Decoding(self._turns, stream, prefill, observer)
        self._open_in_engine(decoding, plan)
        return decoding

    def open_prefill(self, plan: DecodingPlan) -> None:
        """Has the engine compute a prompt that no turn has requested yet. Raises as
        `Engine.open`."""
        self._engine.open(plan.first, PrefillSink(plan.request.turn, self._observer))
        self._requests.record_opened(plan, self._loop.time())
        self._kv.record_prompt(plan.blocks)

    def open_waiting_again(self) -> None:
        """Opens the turns that have not started for the weights of now, in their order: with those
        of their first opening, they would find KV blocks of other weights."""
        for decoding in self._turns:
            plan = decoding.prefill.plan
            if plan is not None and not decoding.has_started:
                decoding.close()
                self._open_again(decoding, plan)

    def _open_again(self, decoding: Decoding, earlier: DecodingPlan) -> None:
        try:
            plan = self._requests.plan_again(earlier, self._loop.time())
            decoding.prefill.restart(plan)
            self._open_in_engine(decoding, plan)
        except Exception as error:
            what = "the turn could not be opened again"
            decoding.fail(self._observer.failure(decoding.stream.turn, error, what))

    def _open_in_engine(self, decoding: Decoding, plan: DecodingPlan) -> None:
        try:
            self._open_guided(decoding, plan)
        except errors.Invalid as refusal:
            if not plan.first.grammar or not plan.request.optional_grammar:
                raise
            self._observer.grammar_refused(plan.request.turn, refusal)
            self._open_guided(decoding, replace(plan, first=replace(plan.first, grammar="")))

    def _open_guided(self, decoding: Decoding, plan: DecodingPlan) -> None:
        sink: Sink = decoding
        if plan.counter is not None:
            sink = BudgetedTurn(
                decoding,
                plan,
                engine=self._engine,
                requests=self._requests,
                observer=self._observer,
                loop=self._loop,
            )
        try:
            decoding.handle = self._engine.open(plan.first, sink)
        except EngineDied as death:
            raise errors.Unavailable("this worker is going away") from death
        self._requests.record_opened(plan, self._loop.time())

    @property
    def holds_help(self) -> bool:
        """Whether a turn that begins alike can use what another one has just computed, and would
        compute it again if it did not wait."""
        return self._kv.shares_any_beginning and not self._shares_queued

    def _is_awaited(self, plan: DecodingPlan) -> bool:
        """Returns whether the turn computes so much of its prompt that others wait for it."""
        cached = plan.blocks.cached
        if cached is None or not self.holds_help:
            return False
        return plan.prompt_tokens - cached >= plan.request.notice_tokens
