"""Sends requests to preprocessors: chooses one, encodes the request, and tries another if it does
not answer."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import xxhash

from schemas import subjects
from schemas.control import INNER_STAGES, Stage
from schemas.errors import RETRY_AFTER_S, TimedOut, TurnwireError, Unavailable, raised
from schemas.requests import CountRequest, DetokenizeRequest, TextReply, TokenizeRequest
from schemas.token_ids import pack_ids
from services.frontend.gateway.stage_wait import StageWait
from services.frontend.gateway.turn_state import AttemptOutcome, BusTurn, StateEvent, outcome_of
from services.frontend.turns.interfaces import Admitted
from services.runtime.config.frontend import FrontendConfig
from services.runtime.nats.requests import decode_reply
from services.runtime.process import Process

PREPARE_TIMEOUT_S = 60.0
"""If a prompt is not ready after this time, another preprocessor gets the request."""
TEXT_TIMEOUT_S = 10.0
PREFERENCE = 64
"""How many more turns a preferred preprocessor may be preparing than the least busy one: it is full
then. Fewer differ by chance where many sessions run."""
PAUSE_S = 0.5
"""Pause before the same preprocessor is tried again: after an outage, processes come back one by
one."""

_text = msgspec.json.Decoder(TextReply)
_encode = msgspec.json.Encoder().encode


class _AttemptRequest:
    """The request of one attempt: what its preprocessor replies, and the time limit of the prompt.

    A reply may come after the outcome of the attempt, or never.
    """

    def __init__(self, turn: BusTurn) -> None:
        self._turn = turn
        self._attempt = turn.attempt
        self._timer: asyncio.TimerHandle | None = None

    def on_reply(self, reply: bytes | TurnwireError) -> None:
        """Fails the attempt, or starts its time limit."""
        if isinstance(reply, TurnwireError):
            self._turn.fail_attempt(self._attempt, StateEvent.REFUSED, reply)
        elif not self._attempt.is_settled:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(PREPARE_TIMEOUT_S, self._on_timeout)

    def _on_timeout(self) -> None:
        # rare: an accepted prompt is not ready in time
        late = TimedOut(f"the prompt was not ready within {PREPARE_TIMEOUT_S:g} s")
        if self._turn.fail_attempt(self._attempt, StateEvent.TIMED_OUT, late):
            self._turn.failures += 1

    def stop_timer(self) -> None:
        """Ends the time limit."""
        if self._timer is not None:
            self._timer.cancel()


class PreprocessorClient:
    """One frontend's client of all preprocessors."""

    def __init__(self, process: Process, config: FrontendConfig) -> None:
        self._process = process
        self._config = config
        self._stages = StageWait(process)
        self._preparing: Counter[str] = Counter()
        """Turns of this frontend that each preprocessor is preparing."""

    def choose(self, model: str, tried: Sequence[str], prefer: str = "") -> str:
        """Returns the least busy preprocessor of a model that has one, or `prefer` unless that is
        full (`PREFERENCE`). Prefers those that were not tried yet and have a recent heartbeat."""
        registry = self._process.registry
        able = [peer.id for peer in registry.able("preprocessor", model)]
        now = asyncio.get_running_loop().time()
        interval_s = self._config.bus.beat_interval_s

        def rank(preprocessor: str) -> tuple[bool, bool, int, float]:
            is_late = registry.is_late("preprocessor", preprocessor, now, interval_s)
            load = self._preparing[preprocessor]
            if preprocessor == prefer:
                load -= PREFERENCE
            return preprocessor in tried, is_late, load, random.random()

        return min(able, key=rank)

    def shared_preprocessor(self, model: str, key: str) -> str:
        """Returns the preprocessor that all frontends prefer for turns with this key, by rendezvous
        hashing; "" where the model has none."""
        able = self._process.registry.able("preprocessor", model)
        return max(
            (peer.id for peer in able),
            key=lambda peer: xxhash.xxh3_64_intdigest(f"{key} {peer}".encode()),
            default="",
        )

    async def wait_for_next(
        self,
        model: str,
        tried: Sequence[str],
        until: float,
        stages: Sequence[Stage] = INNER_STAGES,
        *,
        patient: bool = False,
        prefer: str = "",
    ) -> str:
        """Returns `choose`'s preprocessor once the stages take work, after a pause if it was
        already tried.

        `until`, `patient`: as for `StageWait.wait_until_able`, with its errors; `prefer`: as for
        `choose`.
        """
        await self._stages.wait_until_able(model, until, stages, patient=patient)
        chosen = self.choose(model, tried, prefer)
        if chosen in tried:
            # rare: every preprocessor was tried
            await asyncio.sleep(PAUSE_S)
        return chosen

    async def send_attempt(self, turn: BusTurn) -> AttemptOutcome:
        """Sends the turn's current attempt to its preprocessor; returns once a worker has it, or
        the attempt has failed."""
        preprocessor = turn.attempt.preprocessor
        request = _AttemptRequest(turn)
        try:
            forget = self._process.bus.ask(
                subjects.turn(turn.card.name, preprocessor),
                _encode(turn.request(self._process.id)),
                self._config.accept_timeout_s,
                request.on_reply,
            )
        except TurnwireError as error:
            return outcome_of(error)  # the request was not sent, which leaves the turn as it was
        outcome = turn.request_sent()
        loop = asyncio.get_running_loop()
        requested_at = loop.time()
        self._preparing[preprocessor] += 1
        try:
            # Set by `BusTurn.apply_prepared`, when the parser sends `Prepared`, or `fail_attempt`.
            return await outcome
        finally:
            turn.held_s += loop.time() - requested_at
            forget()
            request.stop_timer()
            self._preparing[preprocessor] -= 1
            if not self._preparing[preprocessor]:
                del self._preparing[preprocessor]

    async def count(self, admitted: Admitted) -> int:
        """Returns the exact number of a conversation's prompt tokens. Raises TurnwireError."""
        request = CountRequest(admitted.conversation)
        reply = await self._request(subjects.count, admitted, request)
        return reply.count

    async def tokenize(
        self, admitted: Admitted, text: str | None, add_special_tokens: bool
    ) -> TextReply:
        """Returns the token ids of a text, or of a conversation's prompt. Raises TurnwireError."""
        conversation = admitted.conversation if text is None else None
        request = TokenizeRequest(text, conversation, add_special_tokens)
        return await self._request(subjects.tokenize, admitted, request)

    async def detokenize(self, admitted: Admitted, token_ids: list[int]) -> TextReply:
        """Returns the text of token ids. Raises TurnwireError."""
        return await self._request(
            subjects.detokenize, admitted, DetokenizeRequest(pack_ids(token_ids))
        )

    async def _request(
        self, subject: Callable[[str, str], str], admitted: Admitted, request: msgspec.Struct
    ) -> TextReply:
        """Returns the reply to a request about text and tokens. Raises TurnwireError.

        Where no preprocessor can be reached, it waits up to `wait_s`, like a new turn.
        """
        data = _encode(request)
        model = admitted.card.name
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.wait_s
        tried: list[str] = []
        timeouts = 0
        while True:
            preprocessor = await self.wait_for_next(model, tried, until, ("preprocessor",))
            tried.append(preprocessor)
            try:
                answer = await self._process.bus.request(
                    subject(model, preprocessor), data, TEXT_TIMEOUT_S
                )
                reply = decode_reply(_text, answer)
            except (TimedOut, Unavailable) as refusal:
                timeouts += isinstance(refusal, TimedOut)
                if timeouts >= self._config.attempts or loop.time() >= until:
                    raise unreachable_error() from refusal
            else:
                if reply.error is not None:
                    raise raised(reply.error)
                return reply


def unreachable_error() -> Unavailable:
    """Makes the error of a request that no process could take in time."""
    return Unavailable(
        "the services behind this server do not answer at the moment", retry_after_s=RETRY_AFTER_S
    )
