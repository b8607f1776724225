"""Sends requests to workers, few at once to each, and returns their replies.

| what happens                              | the worker       | result                     |
|-------------------------------------------|------------------|----------------------------|
| it accepts                                | has the turn     | its reply                  |
| it refuses                                | does not have it | its reply, with an `error` |
| it, or the connection to it, is gone      | does not have it | a reply with `Unavailable` |
| the deadline passes before it is sent     | does not have it | `TimedOut` is raised       |
| there is no reply in time, or none that   | may have it      | `TimedOut` is raised       |
| can be read                               |                  |                            |
"""

import asyncio
import time
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, nullcontext

import msgspec
from msgspec.structs import replace

from schemas import subjects
from schemas.control import Heartbeat
from schemas.errors import RETRY_AFTER_S, Unavailable
from schemas.requests import GenerateReply, GenerateRequest, encode_generate
from services.preprocessor.prepared_turn import seconds_left
from services.runtime.nats.requests import decode_reply
from services.runtime.presence.registry import cards_of
from services.runtime.process import Process

TAKE_TIMEOUT_S = 2.0
"""After this time without a reply the worker may have the turn or not."""
IMAGES_TIMEOUT_S = 10.0
"""This time for a request with images: the worker fetches them first, in 8 s at most."""
UNANSWERED_REQUESTS = 7
"""Requests on their way to one worker; others wait, in order. A message may have 8 MB, and NATS
disconnects a client for which 64 MB wait in the server."""
UNANSWERED_IMAGES = 3
"""Requests with images among them: the worker answers those later, and other turns do not wait for
that."""

_encode = msgspec.json.Encoder().encode
_reply = msgspec.json.Decoder(GenerateReply)


class Unanswered:
    """Bounds the requests that one worker has not answered."""

    def __init__(self) -> None:
        self.all = asyncio.Semaphore(UNANSWERED_REQUESTS)
        self.images = asyncio.Semaphore(UNANSWERED_IMAGES)

    def images_of(self, request: GenerateRequest) -> AbstractAsyncContextManager[None]:
        """The bound of requests with images, if this one has any."""
        return self.images if request.images else nullcontext()


class WorkerLinks:
    """Offers turns to the workers of one model, few at once to each."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._unanswered: defaultdict[str, Unanswered] = defaultdict(Unanswered)
        """The requests of each living worker."""
        process.registry.on_leave.append(self._process_left)

    async def offer(self, worker: str, request: GenerateRequest, deadline: float) -> GenerateReply:
        """Sends a turn's request to a worker, which has the time until `deadline` (of the loop).
        Returns the reply. Raises as `ask_worker`, but for Unavailable, which is a refusal."""
        try:
            self._check_living(worker)
            unanswered = self._unanswered[worker]
            async with unanswered.images_of(request), unanswered.all:
                self._check_living(worker)  # it may have left while the turn waited
                timeout_s = seconds_left(deadline, asyncio.get_running_loop().time())
                timed = replace(request, timeout_s=timeout_s, time=time.time())
                return await ask_worker(self._process, worker, timed)
        except Unavailable:
            # rare: the worker that a turn was sent to is gone
            gone = Unavailable("the worker that was asked is gone", retry_after_s=RETRY_AFTER_S)
            return GenerateReply(worker, gone.info)

    def _check_living(self, worker: str) -> None:
        if self._process.registry.get("worker", worker) is None:
            raise Unavailable("it has left")

    def _process_left(self, heartbeat: Heartbeat) -> None:
        self._unanswered.pop(heartbeat.id, None)


async def ask_worker(process: Process, worker: str, request: GenerateRequest) -> GenerateReply:
    """Sends a request to a worker at once. Returns the worker's reply. Raises as `Bus.request`, and
    as `decode_reply`."""
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
