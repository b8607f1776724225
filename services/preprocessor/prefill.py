"""Prefills the certain prefix of the next turn on the worker that decoded this one, while it is idle."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import msgspec
from prometheus_client import Counter as Metric

from schemas import subjects
from schemas.conversation import Conversation, Sampling, ToolSpec
from schemas.errors import TurnwireError
from schemas.frames import GenerateReply, GenerateRequest, pack_ids
from schemas.ledger import LedgerEntry, LedgerSeat
from services.preprocessor.ahead import Encode, certain_prefix
from services.preprocessor.ledger import Ledger
from services.preprocessor.placement import Placement
from services.preprocessor.routing import MAX_PRIORITY
from services.runtime.process import Process

MAX_WAITING = 4096
"""Turns that are waited for; the oldest are given up."""
LEAST_TOKENS = 64
"""Fewer are not worth a request."""
TAKE_TIMEOUT_S = 2.0

Prepare: TypeAlias = Callable[[], "array[int] | None"]

_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(GenerateReply).decode


class Waiting(msgspec.Struct, frozen=True):
    """A turn that is being decoded."""

    turn: str
    worker: str
    conversation: Conversation
    tools: list[ToolSpec]
    """As the model is told of them."""


class Prefills:
    """The turns whose end is waited for. `run` is the preprocessor's thread pool, `encode` makes a prompt's ids."""

    def __init__(
        self,
        process: Process,
        model: str,
        placement: Placement,
        ledger: Ledger,
        *,
        run: Callable[[Prepare], Awaitable["array[int] | None"]],
        encode: Encode,
    ) -> None:
        self._process = process
        self._model = model
        self._placement = placement
        self._ledger = ledger
        self._run = run
        self._encode = encode
        self._waiting: OrderedDict[bytes, Waiting] = OrderedDict()
        self.outcomes: Counter[str] = Counter()
        self._done = Metric(
            "turnwire_speculative_prefills",
            "Turns behind which a prefill was wanted, by what came of it.",
            ["outcome"],
            registry=process.metrics,
        )

    def expect(self, seat: LedgerSeat, waiting: Waiting) -> None:
        """A turn with the hint went to a worker."""
        self._placement.follow()
        self._waiting[_key(seat)] = waiting
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)

    def ended(self, entry: LedgerEntry) -> None:
        """A turn has ended, here or elsewhere."""
        waiting = self._waiting.pop(_key(entry.seat), None)
        if waiting is not None and not self._process.draining:
            self._process.spawn(self._prefill(waiting, entry), f"prefill behind {waiting.turn}")

    async def _prefill(self, waiting: Waiting, entry: LedgerEntry) -> None:
        try:
            outcome = await self._try(waiting, entry)
        except TurnwireError as error:
            outcome = "refused"
            self._process.log.info("preprocessor.prefill_refused", turn=waiting.turn, error=str(error))
        self.outcomes[outcome] += 1
        self._done.labels(outcome).inc()

    async def _try(self, waiting: Waiting, entry: LedgerEntry) -> str:
        prefix = await self._run(partial(self._prefix, waiting, entry))
        if prefix is None:
            return "unreadable"
        packed = pack_ids(prefix)
        held = self._placement.held_by(waiting.worker, packed, waiting.conversation)
        if held is None:
            return "gone"
        if len(prefix) - held < LEAST_TOKENS:
            return "known"
        request = GenerateRequest(
            turn=f"{waiting.turn}n",
            attempt=1,
            model=self._model,
            prompt=packed,
            parser="",
            frontend="",
            sampling=Sampling(max_tokens=0),
            stop_ids=[],
            context=msgspec.Raw(b"null"),
            priority=-MAX_PRIORITY,
            cache_salt=self._placement.salt(waiting.conversation),
        )
        subject = subjects.generate(self._model, waiting.worker)
        reply = _decode_reply(await self._process.bus.request(subject, _encode(request), TAKE_TIMEOUT_S))
        return "done" if reply.error is None else "busy"

    def _prefix(self, waiting: Waiting, entry: LedgerEntry) -> "array[int] | None":
        said = self._ledger.said(entry, waiting.tools)
        return certain_prefix(waiting.conversation, said, self._encode) if said else None


def _key(seat: LedgerSeat) -> bytes:
    """Tells a turn by where it stands."""
    return seat.state + seat.front_hash
