"""Sends turns to workers: each to the best worker that takes it.

| step   | file                                   | result                                      |
|--------|----------------------------------------|---------------------------------------------|
| rank   | `placement.py`, with the costs of      | the workers, best first                     |
|        | `router.py` and the KV caches of       |                                             |
|        | `kv_view.py`                           |                                             |
| hold   | `holding.py`, with the rules of        | the same, once the best worker computes     |
|        | `leads.py`                             | nothing that is worth waiting for           |
| assign | `placement.py`                         | the worker, a parser shard, the cache salt  |
| send   | this file                              | the worker's reply                          |

What a worker gets was made before (`PreparedTurn.for_worker`), but for what depends on the worker
and on the hold. A worker does not take a turn in three ways:

| failure                               | the worker            | what follows                     |
|---------------------------------------|-----------------------|----------------------------------|
| a reply with an error                 | does not have it      | the next worker, if the error is |
|                                       |                       | the worker's own                 |
| `Unavailable`: the worker, or the     | does not have it      | the next worker                  |
| connection to it, is gone             |                       |                                  |
| `TimedOut`: there is no reply         | may have it           | the attempt fails                |
"""

import asyncio
import time
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.control import Heartbeat
from schemas.errors import (
    MEDIA_MISSING,
    RETRY_AFTER_S,
    ContextOverflow,
    ErrorInfo,
    NotFound,
    Overloaded,
    Unavailable,
    raised,
)
from schemas.requests import GenerateReply, GenerateRequest, encode_generate
from services.preprocessor.observer import AttemptObserver
from services.preprocessor.prepared_turn import PreparedTurn, seconds_left
from services.preprocessor.routing.holding import Holding, HoldReport, TurnHold
from services.preprocessor.routing.placement import Assignment, Placement
from services.runtime.nats.requests import decode_reply
from services.runtime.presence.registry import cards_of
from services.runtime.process import Process

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

_encode = msgspec.json.Encoder().encode
_reply = msgspec.json.Decoder(GenerateReply)


class _Unanswered:
    """Bounds the requests that one worker has not answered."""

    def __init__(self) -> None:
        self.all = asyncio.Semaphore(UNANSWERED_REQUESTS)
        self.images = asyncio.Semaphore(UNANSWERED_IMAGES)

    def images_of(self, turn: PreparedTurn) -> AbstractAsyncContextManager[None]:
        """The bound of requests with images, if the turn has any."""
        return self.images if turn.for_worker.images else nullcontext()


class NextPrompts:
    """Prepares for the prompts that follow turns. This one does nothing; a
    `PrefilledNextPrompts` (`next_prompts.py`) prefills them."""

    def note_turn(self, turn: PreparedTurn, worker: str) -> None:
        """Notes a turn that is sent to a worker. Called before the worker has the turn: a short
        turn may have ended when the acceptance arrives. After a refusal the note of the next worker
        replaces it."""


class WorkerSender:
    """Sends turns to the workers of one model, few at once to each."""

    def __init__(
        self,
        process: Process,
        placement: Placement,
        holding: Holding,
        next_prompts: NextPrompts,
    ) -> None:
        self._process = process
        self._placement = placement
        self._holding = holding
        self._next_prompts = next_prompts
        self._unanswered: defaultdict[str, _Unanswered] = defaultdict(_Unanswered)
        """The requests of each worker."""
        process.registry.on_leave.append(self._process_left)

    async def send_turn(self, turn: PreparedTurn, observer: AttemptObserver) -> None:
        """Sends a turn to the best worker that takes it, as soon as no other turn computes the
        beginning of its prompt.

        Raises as `TurnHold.wait_for_workers` and `Bus.request`, and the error of the worker that
        was tried last.
        """
        with self._holding.open_hold(turn, observer) as hold:
            refusal: ErrorInfo | None = None
            # No await between these workers and `report_to` with the first one: turns that are
            # ranked after this one must find it as their lead.
            for worker in await hold.wait_for_workers():
                assignment = self._placement.assign(worker, turn)
                self._next_prompts.note_turn(turn, worker)
                accepted = False
                try:
                    refusal = await self._offer(turn, assignment, hold)
                    accepted = refusal is None
                finally:
                    if not accepted:
                        self._placement.unassign(assignment)
                if refusal is None:
                    self._placement.record_accepted(assignment, turn)
                    observer.placed(worker, assignment.parser)
                    return
                # rare: a worker did not take a turn
                observer.refused(worker, refusal)
                if not _another_may_take_it(refusal):
                    break
            assert refusal is not None  # `wait_for_workers` returns at least one
            raise raised(refusal)

    async def _offer(
        self, turn: PreparedTurn, assignment: Assignment, hold: TurnHold
    ) -> ErrorInfo | None:
        """Sends a turn to a worker. Returns why the worker did not take it; None: it has."""
        report = hold.report_to(assignment.worker)
        reply: GenerateReply | None = None
        try:
            unanswered = self._unanswered[assignment.worker]
            async with unanswered.images_of(turn), unanswered.all:
                reply = await self._send(turn, assignment, report)
        except Unavailable:
            # rare: the worker that a turn was sent to is gone
            gone = "the worker that was asked is gone"
            return Unavailable(gone, retry_after_s=RETRY_AFTER_S).info
        finally:
            hold.record_reply(reply)
        return reply.error

    async def _send(
        self, turn: PreparedTurn, assignment: Assignment, report: HoldReport
    ) -> GenerateReply:
        """Sends a turn to its worker, and returns the worker's reply. Raises as `ask_worker`, and
        TimedOut."""
        worker = assignment.worker
        if self._process.registry.get("worker", worker) is None:
            raise Unavailable("it left while the turn waited")
        timeout_s = seconds_left(turn.deadline, asyncio.get_running_loop().time())
        request = replace(
            turn.for_worker,
            parser=assignment.parser,
            cache_salt=assignment.cache_salt,
            timeout_s=timeout_s,
            notice=report.notice,
            notice_tokens=report.notice_tokens,
            held_s=report.held_s,
            held_for=report.held_for,
            time=time.time(),
        )
        return await ask_worker(self._process, request, worker)

    def _process_left(self, heartbeat: Heartbeat) -> None:
        self._unanswered.pop(heartbeat.id, None)


async def ask_worker(process: Process, request: GenerateRequest, worker: str) -> GenerateReply:
    """Sends a request to a worker. Returns the worker's reply. Raises as `Bus.request`, and as
    `decode_reply`."""
    data = encoded_for(process.registry.get("worker", worker), request)
    limit_s = IMAGES_TIMEOUT_S if request.images else TAKE_TIMEOUT_S
    answer = await process.bus.request(subjects.generate(request.model, worker), data, limit_s)
    return decode_reply(_reply, answer)


def encoded_for(worker: Heartbeat | None, request: GenerateRequest) -> bytes:
    """A request in the encoding that this worker reads."""
    cards = [] if worker is None else cards_of([worker], request.model)
    if any(card.raw_prompts for card in cards):
        return encode_generate(request)
    return _encode(request)


def _another_may_take_it(refusal: ErrorInfo) -> bool:
    """Whether another worker may take a turn that was refused so: the worker has no room, is not
    available, or has too small a window or no longer the turn's adapter (NotFound). Other errors
    are of the request itself."""
    if refusal.code == MEDIA_MISSING:
        return False
    return isinstance(raised(refusal), Overloaded | Unavailable | ContextOverflow | NotFound)
