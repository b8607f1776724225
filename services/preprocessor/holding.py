"""Holds turns while another turn computes the beginning of their prompts (`routing.leads`,
docs/routing.md).

A turn is sent to a worker with the subject of a notice, which the worker publishes with the first
token, or at the end of a turn without one. Until then the turn is a lead. A notice may be lost, so
a lead has a limit of time; it also ends when its worker refuses the turn, or dies.
"""

import asyncio
from contextlib import ExitStack
from functools import partial

import msgspec
from msgspec.structs import replace

from schemas.control import Heartbeat
from schemas.errors import TurnwireError
from schemas.frames import GenerateReply, GenerateRequest, PrefillNotice, TurnRequest
from services.preprocessor.preparation import seconds_left
from services.preprocessor.routing.leads import MAX_HOLD_S, Leads, LongPrompt
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.router import priority
from services.runtime.observability.metrics import step_histogram
from services.runtime.process import Process

_decode_notice = msgspec.json.Decoder(PrefillNotice).decode


class Holding:
    """The turns of one preprocessor that wait, and those that they wait for."""

    def __init__(self, process: Process, placement: Placement, hold_tokens: int) -> None:
        self._process = process
        self._placement = placement
        self._leads = Leads(hold_tokens, placement.router.waiting)
        self._open: dict[LongPrompt, ExitStack] = {}
        """The leads, and what ends with each: its notice and its limit."""
        self._loop = asyncio.get_running_loop()
        text = "How long a turn waited for another one to compute the beginning of its prompt."
        self._held_s = step_histogram("held", text, process.metrics)
        self._resuming = asyncio.Lock()
        process.registry.on_leave(self._worker_left)

    def prompt(self, request: TurnRequest, packed: bytes) -> LongPrompt | None:
        """Returns a turn's prompt (`pack_ids`) for the calls below; None: it is too short to wait
        or to be waited for."""
        tokens, conversation = len(packed) // 4, request.conversation
        if not 0 < self._leads.hold_tokens <= tokens:
            return None
        keys, size = self._placement.keys(packed, conversation)
        if len(keys) * size < self._leads.hold_tokens:
            return None
        urgency, hold_s = priority(conversation), MAX_HOLD_S - request.held_s
        return LongPrompt(
            turn=request.turn,
            tokens=tokens,
            keys=keys,
            block_tokens=size,
            priority=urgency,
            hold_s=hold_s,
        )

    async def workers(
        self, request: TurnRequest, packed: bytes, prompt: LongPrompt | None, deadline: float | None
    ) -> list[str]:
        """Returns the workers to try, best first, as soon as the best one computes nothing that is
        worth waiting for.

        The caller sends the turn in the same step of the event loop, so that the others find it as
        their lead. Raises as `Placement.workers`, and TimedOut.
        """
        if prompt is None:
            return self._placement.workers(request, packed, {})
        while True:
            again = prompt.held_at is not None
            workers = self._placement.workers(
                request, packed, self._leads.computing(prompt), again=again
            )
            found = self._leads.find(prompt, workers[0], self._loop.time())
            if found is None or self._placement.shares_queued(workers[0]):
                break
            await self._wait(prompt, found, deadline)
        if prompt.held_at is not None:
            prompt.held_s = round(self._loop.time() - prompt.held_at, 4)
            self._held_s.observe(prompt.held_s)
            self._process.log.info(
                "preprocessor.held",
                turn=prompt.turn,
                held_for=prompt.held_for,
                held_s=prompt.held_s,
            )
        return workers

    async def _wait(self, prompt: LongPrompt, lead: LongPrompt, deadline: float | None) -> None:
        now = self._loop.time()
        ended: asyncio.Future[None] = self._loop.create_future()
        self._leads.follow(prompt, lead, now, partial(ended.set_result, None))
        until = prompt.hold_until(now)
        try:
            await asyncio.wait((ended,), timeout=min(until, deadline or until) - now)
        finally:
            self._leads.leave(prompt)
        async with self._resuming:  # one in a tick: the process handles messages between them
            await asyncio.sleep(0)
        await self._process.attached()  # as before the preparation
        seconds_left(deadline, self._loop.time())

    def begin(
        self, prompt: LongPrompt | None, worker: str, request: GenerateRequest
    ) -> GenerateRequest:
        """Makes a turn that is being sent to a worker a lead, unless the worker is known to hold
        nearly all of its prompt. Returns its request with the subject of the notice."""
        if prompt is None:
            return request
        request, tokens = (
            replace(request, held_s=prompt.held_s, held_for=prompt.held_for),
            self._leads.hold_tokens,
        )
        if prompt.missing(worker) < tokens:
            return request
        self._leads.begin(prompt, worker, self._loop.time())
        notice, forget = self._process.bus.expect(partial(self._noticed, prompt))
        self._open[prompt] = ExitStack()
        self._open[prompt].callback(forget)
        return replace(request, notice=notice, notice_tokens=tokens)

    def answered(self, prompt: LongPrompt | None, reply: GenerateReply | None) -> None:
        """Handles the worker's reply; None: there was none."""
        if prompt is None or prompt not in self._open:
            return
        if reply is None or reply.error is not None:
            self._end(prompt, computed=False)
        elif (limit_s := self._leads.taken(prompt, reply.held)) is None:
            self._end(prompt, computed=True)
        else:
            late = self._loop.call_later(limit_s, partial(self._end, prompt, computed=False))
            self._open[prompt].callback(late.cancel)

    def left(self, prompt: LongPrompt | None) -> None:
        """Ends a turn's part in this: a worker has it, or it has failed. Turns that wait for it,
        though it is not a lead, go on."""
        if prompt is not None and prompt not in self._open:
            self._leads.pass_on(prompt)

    def _noticed(self, prompt: LongPrompt, notice: bytes | TurnwireError) -> None:
        self._end(prompt, computed=isinstance(notice, bytes) and _decode_notice(notice).computed)

    def _end(self, prompt: LongPrompt, *, computed: bool) -> None:
        self._open.pop(prompt).close()
        self._leads.end(prompt, computed=computed, now=self._loop.time())

    def _worker_left(self, heartbeat: Heartbeat) -> None:
        for prompt in [one for one in self._open if one.worker == heartbeat.id]:
            # rare: a worker is lost while it computes a prompt
            self._end(prompt, computed=False)
        self._leads.speeds.pop(heartbeat.id, None)
