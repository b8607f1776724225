"""Sends turns to workers, and refusals to frontends."""

import asyncio
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.control import Heartbeat
from schemas.errors import RETRY_AFTER_S, ErrorInfo, TurnwireError, Unavailable
from schemas.frames import EventFrame, GenerateReply, TurnRequest
from services.preprocessor.holding import Hold, HoldNotice
from services.preprocessor.prepared_turn import PreparedTurn, seconds_left
from services.preprocessor.routing.placement import Assignment, Placement
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
REFUSE_TIMEOUT_S = 1.0
REFUSE_S = 60.0
"""How long a refusal is sent again: as long as a frontend waits for a prompt."""

_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(GenerateReply).decode


class WorkerSender:
    """Sends turns to the workers of one model, few at once to each."""

    def __init__(self, process: Process, placement: Placement, model: str) -> None:
        self._process = process
        self._placement = placement
        self._model = model
        self._unanswered: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(UNANSWERED_REQUESTS)
        )
        self._unanswered_images: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(UNANSWERED_IMAGES)
        )
        """Bounds the requests that each worker has not answered."""
        process.registry.on_leave(self._process_left)

    async def send_turn(
        self, turn: PreparedTurn, assignment: Assignment, hold: Hold
    ) -> ErrorInfo | None:
        """Sends a turn to a worker. Returns why the worker did not take it; None: it has."""
        notice = hold.sent_to(assignment.worker)
        reply: GenerateReply | None = None
        try:
            async with self._image_room(turn, assignment), self._unanswered[assignment.worker]:
                answer = await self._request(turn, assignment, notice)
            reply = _decode_reply(answer)
        except Unavailable:  # the worker certainly does not have the turn
            # rare: the worker that a turn was sent to is gone
            gone = "the worker that was asked is gone"
            return Unavailable(gone, retry_after_s=RETRY_AFTER_S).info
        finally:
            hold.answered(reply)
        return reply.error

    def _image_room(
        self, turn: PreparedTurn, assignment: Assignment
    ) -> AbstractAsyncContextManager[None]:
        if turn.generate.images:
            return self._unanswered_images[assignment.worker]
        return nullcontext()

    async def _request(
        self, turn: PreparedTurn, assignment: Assignment, notice: HoldNotice
    ) -> bytes:
        """Completes the request for its worker, and waits for the worker's answer. Raises as
        `Bus.request`."""
        worker = assignment.worker
        if self._process.registry.get("worker", worker) is None:
            raise Unavailable("it left while the turn waited")
        generate = replace(
            turn.generate,
            parser=assignment.parser,
            cache_salt=assignment.salt,
            timeout_s=seconds_left(turn.deadline, asyncio.get_running_loop().time()),
            notice=notice.subject,
            notice_tokens=notice.tokens,
            **notice.held(),
        )
        timeout_s = IMAGES_TIMEOUT_S if generate.images else TAKE_TIMEOUT_S
        return await self._process.bus.request(
            subjects.generate(self._model, worker),
            self._placement.encode(generate, worker),
            timeout_s,
        )

    def _process_left(self, heartbeat: Heartbeat) -> None:
        self._unanswered.pop(heartbeat.id, None)
        self._unanswered_images.pop(heartbeat.id, None)


class RefusalSender:
    """Sends refusals to frontends."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def send_refusal(self, request: TurnRequest, error: ErrorInfo) -> None:
        """Sends the error to the frontend until the frontend acknowledges it, or is gone."""
        refusal = EventFrame.refusal(self._process.id, request.turn, request.attempt, error)
        frame = _encode(refusal)
        subject = subjects.events(request.frontend)
        until = asyncio.get_running_loop().time() + REFUSE_S
        while asyncio.get_running_loop().time() < until:
            try:
                await self._process.bus.request(subject, frame, REFUSE_TIMEOUT_S)
                return
            except Unavailable:
                frontend = self._process.registry.get("frontend", request.frontend)
                if frontend is None and not self._process.cut_off:
                    return
                await asyncio.sleep(REFUSE_TIMEOUT_S)  # one of the two is reconnecting
            except TurnwireError as failure:
                self._process.log.warning(
                    "preprocessor.refusal_not_delivered", turn=request.turn, error=str(failure)
                )
