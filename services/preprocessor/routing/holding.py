"""Holds turns while another turn computes the beginning of their prompts (`routing.leads`,
docs/routing.md).

A turn is sent to a worker with the subject of a notice, which the worker publishes with the first
token, or at the end of a turn without one. Until then the turn is a lead. A notice may be lost, so
a lead has a limit of time; it also ends when its worker refuses the turn, or dies.

The sender of a turn uses its `TurnHold`. `Leads` decides which turns wait, and `Holding` lets them.
"""

import asyncio
from contextlib import ExitStack
from functools import partial
from typing import Self

import msgspec
from msgspec.structs import replace

from schemas.control import Heartbeat
from schemas.errors import TurnwireError
from schemas.requests import NOT_HELD_S, GenerateReply, GenerateRequest, PrefillNotice
from services.preprocessor.observer import AttemptObserver
from services.preprocessor.prepared_turn import PreparedTurn, seconds_left
from services.preprocessor.routing.kv_view import BlockKeys
from services.preprocessor.routing.leads import MAX_HOLD_S, Lead, Leads, PendingPrompt
from services.preprocessor.routing.placement import Placement
from services.runtime.process import Process

_decode_notice = msgspec.json.Decoder(PrefillNotice).decode


class TurnHold:
    """The hold of one turn, from its prompt until it has a worker or has failed."""

    def __init__(
        self,
        holding: "Holding",
        turn: PreparedTurn,
        prompt: PendingPrompt,
        observer: AttemptObserver,
    ) -> None:
        self._holding = holding
        self._leads = holding.leads
        self._placement = holding.placement
        self._turn = turn
        self._prompt = prompt
        self._observer = observer
        self._held_s = NOT_HELD_S
        """How long the turn was held."""
        self._loop = asyncio.get_running_loop()

    async def wait_for_workers(self) -> list[str]:
        """Returns the workers to try, best first, as soon as the best one computes nothing that is
        worth waiting for.

        The caller calls `begin_offer` for the first of them in the same step of the event loop, so
        that other turns find this one as their lead. Raises as `Placement.rank_workers`, and
        TimedOut.
        """
        prompt = self._prompt
        while True:
            workers = self._placement.rank_workers(
                self._turn, self._leads.computing(prompt), again=prompt.was_held
            )
            lead = self._leads.find(prompt, workers[0], self._loop.time())
            if lead is None or self._placement.shares_queued_prefixes(workers[0]):
                break
            await self._holding.wait_for(prompt, lead, self._turn.deadline)
            seconds_left(self._turn.deadline, self._loop.time())

        if prompt.was_held:
            self._held_s = round(self._loop.time() - prompt.held_at, 4)
            self._observer.held(prompt.held_for, self._held_s)
        return workers

    def begin_offer(self, request: GenerateRequest, worker: str) -> GenerateRequest:
        """Makes the turn a lead on a worker that it is about to be sent to, unless the worker is
        known to hold nearly all of its prompt. Returns the request with what the worker gets of the
        hold: how long it lasted, and the notice to publish for a lead."""
        prompt = self._prompt
        notice = ""
        notice_tokens = 0
        if self._leads.is_worth_waiting_for(prompt, worker):
            notice = self._holding.begin_lead(prompt, worker)
            notice_tokens = self._leads.hold_tokens
        return replace(
            request,
            notice=notice,
            notice_tokens=notice_tokens,
            held_s=self._held_s,
            held_for=prompt.held_for,
        )

    def record_reply(self, reply: GenerateReply) -> None:
        """Handles the worker's reply, after which a refused turn is no longer a lead."""
        lead = self._prompt.lead
        if lead is None:
            return
        if reply.error is not None:
            self._holding.end_lead(lead, computed=False)
        else:
            self._holding.accept_lead(lead, reply.expected_cached)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the turn's part in this: a worker has it, or it has failed. A turn that waits for it
        goes on, unless it is a lead that a worker has accepted."""
        lead = self._prompt.lead
        if lead is None:
            self._holding.pass_on(self._prompt)
        elif not lead.accepted:
            self._holding.end_lead(lead, computed=False)


class Holding:
    """The turns of one preprocessor that wait, and those that they wait for."""

    def __init__(self, process: Process, placement: Placement, leads: Leads) -> None:
        self.placement = placement
        self.leads = leads
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._open: dict[Lead, ExitStack] = {}
        """The leads, and what ends with each: its notice and its limit."""
        self._waiting: dict[PendingPrompt, asyncio.Future[None]] = {}
        """The followers, and what is done when they go on."""
        self._resuming = asyncio.Lock()
        process.registry.on_leave.append(self._worker_left)

    def __repr__(self) -> str:
        return f"<{len(self._waiting)} turns wait for {self.open_leads} leads>"

    @property
    def open_leads(self) -> int:
        """The number of turns that others may wait for."""
        return len(self._open)

    def open_hold(self, turn: PreparedTurn, observer: AttemptObserver) -> TurnHold:
        """Begins the hold of a turn."""
        blocks = self._keys_to_compare(turn)
        prompt = PendingPrompt(
            turn=turn.request.turn,
            tokens=turn.prompt_tokens,
            keys=blocks.keys,
            block_tokens=blocks.block_tokens,
            priority=turn.for_worker.priority,
            hold_s=MAX_HOLD_S - turn.request.held_s,
        )
        return TurnHold(self, turn, prompt, observer)

    def begin_lead(self, prompt: PendingPrompt, worker: str) -> str:
        """Makes a turn a lead. Returns the subject for the notice of its worker."""
        lead = self.leads.begin(prompt, worker, self._loop.time())
        subject, forget = self._process.bus.expect(partial(self._noticed, lead))
        self._open[lead] = ExitStack()
        self._open[lead].callback(forget)
        return subject

    def accept_lead(self, lead: Lead, cached: int | None) -> None:
        """Notes that its worker accepted a lead, which has a limit from now on. `cached`:
        `GenerateReply.expected_cached`."""
        self._go_on(self.leads.record_accepted(lead, cached, self._loop.time()))
        if lead.has_ended:
            self._forget(lead)
        else:
            late = partial(self.end_lead, lead, computed=False)
            limit = self._loop.call_later(self.leads.limit_s(lead), late)
            self._open[lead].callback(limit.cancel)

    def end_lead(self, lead: Lead, *, computed: bool) -> None:
        """Ends a lead. `computed`: it has its first token."""
        self._go_on(self.leads.end(lead, computed=computed, now=self._loop.time()))
        self._forget(lead)

    def pass_on(self, prompt: PendingPrompt) -> None:
        """Lets one of the turns that wait for a turn which is not a lead go on."""
        self._go_on(self.leads.pass_on(prompt))

    async def wait_for(self, prompt: PendingPrompt, lead: Lead, deadline: float) -> None:
        """Makes a turn wait for a lead, at most until it was held long enough, or until its
        deadline."""
        now = self._loop.time()
        goes_on: asyncio.Future[None] = self._loop.create_future()
        self._waiting[prompt] = goes_on
        self._go_on(self.leads.follow(prompt, lead, now))

        until = min(prompt.hold_until(now), deadline)
        try:
            await asyncio.wait((goes_on,), timeout=until - now)
        finally:
            self.leads.leave(prompt)
            del self._waiting[prompt]
        await self._wait_to_resume()

    def _keys_to_compare(self, turn: PreparedTurn) -> BlockKeys:
        """The keys of a prompt; none if it is too short to wait or to be waited for."""
        least = self.leads.hold_tokens
        if 0 < least <= turn.prompt_tokens:
            blocks = self.placement.block_keys(turn)
            if len(blocks.keys) * blocks.block_tokens >= least:
                return blocks
        return BlockKeys()

    async def _wait_to_resume(self) -> None:
        """Returns when a turn that waited may go on: one in a tick, because the process handles
        messages between them, and none while the process is cut off."""
        async with self._resuming:
            await asyncio.sleep(0)
        await self._process.wait_until_attached()

    def _go_on(self, prompts: list[PendingPrompt]) -> None:
        """Ends the wait of turns that `Leads` lets go on."""
        for prompt in prompts:
            self._waiting[prompt].set_result(None)

    def _forget(self, lead: Lead) -> None:
        """Expects no notice of a lead any more, and drops its limit."""
        self._open.pop(lead).close()

    def _noticed(self, lead: Lead, notice: bytes | TurnwireError) -> None:
        computed = isinstance(notice, bytes) and _decode_notice(notice).computed
        self.end_lead(lead, computed=computed)

    def _worker_left(self, heartbeat: Heartbeat) -> None:
        lost = [lead for lead in self._open if lead.worker == heartbeat.id]
        for lead in lost:
            # rare: a worker is lost while it computes a prompt
            self.end_lead(lead, computed=False)
        self.leads.speeds.pop(heartbeat.id, None)
