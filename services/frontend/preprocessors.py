"""Asking preprocessors: which one, for how long, and whom next."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from schemas import subjects
from schemas.errors import TimedOut, TurnwireError, Unavailable, raised
from schemas.events import Prepared
from schemas.frames import CountRequest, TextReply
from services.frontend.open_turn import Turn
from services.frontend.request_bytes import request_bytes
from services.runtime.config import FrontendConfig
from services.runtime.process import Process

PREPARE_TIMEOUT_S = 60.0
"""A prompt that is not ready by then is tried elsewhere."""
TEXT_TIMEOUT_S = 10.0
RETRY_AFTER_S = 1.0
LATE_BEATS = 1.5
"""A process whose beat is so many intervals old is asked last."""

_decode_text = msgspec.json.Decoder(TextReply).decode
_encode = msgspec.json.Encoder().encode


class Preprocessors:
    """All preprocessors, as one frontend asks them."""

    def __init__(self, process: Process, config: FrontendConfig) -> None:
        self._process = process
        self._config = config
        self._busy: Counter[str] = Counter()
        """Turns of this frontend that each is preparing now."""

    def choose(self, model: str, tried: Sequence[str]) -> str:
        """The one with the least to do of those who were heard of lately and not tried yet.

        Raises:
            Unavailable: there is none at all.
        """
        registry = self._process.registry
        beats = registry.able("preprocessor", model)
        if not beats:
            raise Unavailable("no preprocessor serves this model at the moment", retry_after_s=RETRY_AFTER_S)
        now = asyncio.get_running_loop().time()
        late = LATE_BEATS * self._config.bus.beat_interval_s
        return min(
            beats,
            key=lambda beat: (
                beat.id in tried,
                registry.age("preprocessor", beat.id, now) > late,
                self._busy[beat.id],
                random.random(),
            ),
        ).id

    async def prepare(self, turn: Turn) -> Prepared:
        """Gives the turn's present attempt to `turn.preprocessor`; returns once a worker has it.

        Raises:
            TimedOut, Unavailable: another one may succeed.
            TurnwireError: it was refused.
        """
        outcome: asyncio.Future[Prepared] = asyncio.get_running_loop().create_future()
        data = request_bytes(turn.request(self._process.id))
        subject = subjects.turn(turn.card.name, turn.preprocessor)
        acceptance = _Acceptance(outcome)
        forget = self._process.bus.ask(subject, data, self._config.accept_timeout_s, acceptance.known)
        turn.outcome = outcome
        busy = turn.preprocessor
        self._busy[busy] += 1
        try:
            return await outcome
        finally:
            forget()
            acceptance.over()
            self._busy[busy] -= 1
            if not self._busy[busy]:
                del self._busy[busy]
            if turn.outcome is outcome:
                turn.outcome = None

    async def ask(self, subject: Callable[[str, str], str], model: str, request: msgspec.Struct) -> TextReply:
        """The answer to a question about text and tokens. Raises TurnwireError."""
        data = request_bytes(request) if isinstance(request, CountRequest) else _encode(request)
        tried: list[str] = []
        while True:
            tried.append(self.choose(model, tried))
            try:
                answer = await self._process.bus.request(subject(model, tried[-1]), data, TEXT_TIMEOUT_S)
                break
            except (TimedOut, Unavailable):
                if len(tried) >= self._config.attempts:
                    raise
        reply = _decode_text(answer)
        if reply.error is not None:
            raise raised(reply.error)
        return reply


class _Acceptance:
    """Whether a preprocessor has a turn. It may be known after the outcome, or never."""

    __slots__ = ("_outcome", "_patience")

    def __init__(self, outcome: asyncio.Future[Prepared]) -> None:
        self._outcome = outcome
        self._patience: asyncio.TimerHandle | None = None

    def known(self, answer: bytes | TurnwireError) -> None:
        """The preprocessor has answered, or will not."""
        if self._outcome.done():
            return
        if isinstance(answer, TurnwireError):
            self._outcome.set_exception(answer)
        else:
            self._patience = self._outcome.get_loop().call_later(PREPARE_TIMEOUT_S, self._too_late)

    def over(self) -> None:
        """There is an outcome, or nobody waits for it."""
        if self._patience is not None:
            self._patience.cancel()

    def _too_late(self) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(TimedOut(f"the prompt was not ready within {PREPARE_TIMEOUT_S:g} s"))
