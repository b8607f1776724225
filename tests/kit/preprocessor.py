"""A preprocessor's way to its workers, with workers in memory: they reply as the test has set."""

import asyncio
import math
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from schemas.control import Heartbeat, Load, ModelCard
from schemas.conversation import Conversation, Hints, Sampling
from schemas.errors import ErrorInfo, TurnwireError, Unavailable
from schemas.events import PromptImage
from schemas.requests import (
    GenerateReply,
    GenerateRequest,
    PrefillNotice,
    TurnRequest,
    decode_generate,
)
from schemas.token_ids import pack_ids
from services.preprocessor.next_prompts import NextPrompts
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.routing.holding import Holding
from services.preprocessor.routing.kv_view import KvView
from services.preprocessor.routing.leads import Leads
from services.preprocessor.routing.placement import Placement
from services.preprocessor.routing.router import Router
from services.preprocessor.routing.sending import WorkerSender
from services.preprocessor.routing.worker_links import WorkerLinks
from services.runtime.nats.requests import Forget, OnAnswer, Requester
from tests.kit.process import FakeProcess
from tests.kit.waiting import LIMIT_S, eventually

BLOCK_TOKENS = 16
HOLD_TOKENS = 64
GONE = Unavailable("the subject has no subscriber")


class WorkersBus(Requester):
    """A bus with the workers of one model. A worker accepts all requests, unless `replies` has
    another reply for it; None: it does not reply."""

    connected = True

    def __init__(self) -> None:
        super().__init__("_INBOX")
        self.replies: dict[str, GenerateReply | TurnwireError | None] = {}
        self.requests: list[tuple[str, GenerateRequest]] = []
        """Each worker that was sent a request, and the request."""
        self.limits_s: list[float] = []
        """How long the sender of each request would wait for the reply."""
        self._unanswered: list[tuple[str, str]] = []
        """Workers with a request that they have not answered, and its token."""

    @property
    def workers(self) -> list[str]:
        """The workers that were sent a request, in order."""
        return [worker for worker, _ in self.requests]

    @override
    def ask(self, subject: str, data: bytes, timeout_s: float, on_answer: OnAnswer) -> Forget:
        """Waits longer, because a test may be slow."""
        self.limits_s.append(timeout_s)
        return super().ask(subject, data, LIMIT_S, on_answer)

    @override
    def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> bool:
        worker = subject.rpartition(".")[2]
        token = reply_to.removeprefix(self.inbox)
        self.requests.append((worker, decode_generate(data)))
        reply = self.replies.get(worker, GenerateReply(worker))
        if reply is None:
            self._unanswered.append((worker, token))
        else:
            asyncio.get_running_loop().call_soon(self._answer, token, reply)
        return True

    def reply(self, reply: GenerateReply) -> None:
        """A worker answers the oldest request that it has not answered."""
        request = next(request for request in self._unanswered if request[0] == reply.worker)
        self._unanswered.remove(request)
        self._answer(request[1], reply)

    def _answer(self, token: str, reply: GenerateReply | TurnwireError) -> None:
        data = reply if isinstance(reply, TurnwireError) else msgspec.json.encode(reply)
        self.answer(token, data)

    def notify(self, request: GenerateRequest, *, computed: bool) -> None:
        """A worker publishes the notice of a turn."""
        notice = PrefillNotice(request.turn, computed)
        self.answer(request.notice.removeprefix(self.inbox), msgspec.json.encode(notice))


class RecordedPlacing:
    """An observer that records what happens to a turn on its way to a worker."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, ErrorInfo]] = []
        self.places: list[tuple[str, str]] = []
        self.holds: list[str] = []

    def held(self, turn: str, _seconds: float) -> None:
        self.holds.append(turn)

    def refused(self, worker: str, error: ErrorInfo) -> None:
        self.refusals.append((worker, error))

    def placed(self, worker: str, parser: str) -> None:
        self.places.append((worker, parser))


class RecordedNotes(NextPrompts):
    """Records the notes of turns that workers get."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        """The noted worker of each turn."""

    @override
    def note_turn(self, turn: PreparedTurn, worker: str) -> None:
        self.notes[turn.request.turn] = worker

    @override
    def forget_turn(self, turn: PreparedTurn) -> None:
        del self.notes[turn.request.turn]


class Sending:
    """Turns on their way from one preprocessor to workers of the model `m`."""

    def __init__(self, *workers: str) -> None:
        self.bus = WorkersBus()
        process: Any = FakeProcess()
        process.bus = self.bus
        process.wait_until_attached = _attached
        self.registry = process.registry
        self.now = asyncio.get_running_loop().time
        self.registry.receive(Heartbeat("worker", "worker-1", leaving=True), self.now())
        for name in workers:
            self.join(f"worker-{name}")

        self.leads = Leads(HOLD_TOKENS)
        router = Router(1.0, 16384.0, self.leads.waiting)
        placement = Placement(process, "m", router, KvView(process, "m"))
        self.holding = Holding(process, placement, self.leads)
        self.next_prompts = RecordedNotes()
        links = WorkerLinks(process)
        self._sender = WorkerSender(links, placement, self.holding, self.next_prompts)

    def join(self, worker: str) -> None:
        """A worker sends its first heartbeat."""
        card = ModelCard("m", block_tokens=BLOCK_TOKENS, raw_prompts=True)
        heartbeat = Heartbeat("worker", worker, models=[card], load=Load(slots=256))
        self.registry.receive(heartbeat, self.now())

    def turn(
        self,
        name: str,
        ids: Sequence[int] = (1, 2, 3),
        *,
        images: Sequence[PromptImage] = (),
        cache_salt: str | None = None,
        deadline: float = math.inf,
    ) -> PreparedTurn:
        """A turn with a prompt of these ids."""
        packed = pack_ids(ids)
        hints = Hints(cache_salt=cache_salt)
        prompt: Any = SimpleNamespace(ids=array("I", ids))
        request = GenerateRequest(
            turn=name,
            attempt=1,
            model="m",
            prompt=packed,
            parser="",
            frontend="f",
            sampling=Sampling(max_tokens=9),
            stop_ids=[],
            context=msgspec.Raw(b"{}"),
            images=list(images),
        )
        return PreparedTurn(
            request=TurnRequest(name, "f", Conversation("m", [], hints=hints)),
            prompt=prompt,
            for_worker=request,
            block_key_ids=packed,
            ledger=None,
            deadline=deadline,
        )

    async def send(self, turn: PreparedTurn) -> RecordedPlacing:
        """Sends a turn; returns what happened to it. Raises as `WorkerSender.send_turn`."""
        placing: Any = RecordedPlacing()
        await self._sender.send_turn(turn, placing)
        recorded: RecordedPlacing = placing
        return recorded

    async def sending(self, turn: PreparedTurn) -> asyncio.Task[RecordedPlacing]:
        """Sends a turn; returns when a worker has got its request."""
        count = len(self.bus.requests)
        task = asyncio.get_running_loop().create_task(self.send(turn))
        await eventually(lambda: len(self.bus.requests) > count)
        return task

    async def next_worker(self, name: str) -> str:
        """The worker that a new turn goes to: the one with the fewest turns."""
        return (await self.send(self.turn(name))).places[0][0]


async def failure_of(task: asyncio.Task[RecordedPlacing]) -> TurnwireError:
    """The error of a turn that no worker takes."""
    with pytest.raises(TurnwireError) as failure:
        await task
    return failure.value


async def _attached() -> None:
    """A process that is not cut off."""
