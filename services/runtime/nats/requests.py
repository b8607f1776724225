"""Sends requests over a bus, and passes each answer, refusal or timeout to the caller; delays work
until messages are sent."""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar, TypeVarTuple

import msgspec

from schemas.errors import TimedOut, TurnwireError, Unavailable, raised

A = TypeVarTuple("A")
T = TypeVar("T")
OnAnswer: TypeAlias = Callable[[bytes | TurnwireError], object]
Forget: TypeAlias = Callable[[], object]
"""Drops a request: its answer is ignored from then on."""


class _Request(NamedTuple):
    subject: str
    on_answer: OnAnswer
    timer: asyncio.TimerHandle | None


class Requester(ABC):
    """Sends requests with `publish`. All answers arrive on one inbox, with a token that names the
    request: a subscription for each would cost two messages and a round trip."""

    def __init__(self, inbox_prefix: str) -> None:
        self.inbox = f"{inbox_prefix}.{secrets.token_hex(8)}."
        self._last_request = 0
        self.waiting: dict[str, _Request] = {}
        """Token → request without an answer so far."""

    @abstractmethod
    def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> bool:
        """Sends one message; returns False if the connection is down."""

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Sends a request and waits for one answer.

        Raises:
            Unavailable: the subject has no subscriber, or the connection is down.
            TimedOut: no answer within `timeout_s`.
            TooLarge: as `publish`.
            NotFound: the requested stored message does not exist.
            EngineFailed: the store refuses the request.
        """
        outcome: asyncio.Future[bytes | TurnwireError] = asyncio.get_running_loop().create_future()

        def answered(answer: bytes | TurnwireError) -> None:
            if not outcome.done():  # cancelled in this tick
                outcome.set_result(answer)

        forget = self.ask(subject, data, timeout_s, answered)
        try:
            answer = await outcome
        finally:
            forget()
        if isinstance(answer, TurnwireError):
            # `answer` itself would refer to this frame by its traceback, and the frame to it.
            raise raised(answer.info)
        return answer

    def ask(self, subject: str, data: bytes, timeout_s: float, on_answer: OnAnswer) -> Forget:
        """Sends a request in this tick, and passes the answer or the error to `on_answer`:
        `request` without a task.

        Raises Unavailable if the connection is down, and TooLarge.
        """
        self._last_request += 1
        token = str(self._last_request)
        if not self.publish(subject, data, reply_to=self.inbox + token):
            raise Unavailable("the connection to the bus is down")

        def expire() -> None:
            self.answer(token, TimedOut(f"no answer on {subject} within {timeout_s:g} s"))

        timer = asyncio.get_running_loop().call_later(timeout_s, expire)
        self.waiting[token] = _Request(subject, on_answer, timer)
        return partial(self._forget, token)

    def expect(self, on_answer: OnAnswer) -> tuple[str, Forget]:
        """A subject that another process may publish one message on, which is passed to
        `on_answer`. The message may be lost, and has no limit of time."""
        self._last_request += 1
        token = str(self._last_request)
        self.waiting[token] = _Request("", on_answer, None)
        return self.inbox + token, partial(self._forget, token)

    def answer(self, token: str, answer: bytes | TurnwireError) -> None:
        """Passes the answer to a request that still waits."""
        request = self._forget(token)
        if request is not None:
            request.on_answer(answer)

    def _forget(self, token: str) -> _Request | None:
        request = self.waiting.pop(token, None)
        if request is not None and request.timer is not None:
            request.timer.cancel()
        return request


def after_sending(work: Callable[[*A], object], *args: *A) -> None:
    """Calls `work(*args)` two ticks from now, when the messages of this tick have been written:
    `FrameSender` makes frames at the end of a tick, and nats-py writes published messages in the
    next one."""
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, work, *args)


def decode_reply(decoder: msgspec.json.Decoder[T], reply: bytes) -> T:
    """Decodes a reply. Raises TimedOut for one that cannot be read, as if it had been lost: any
    process may have sent it, where the bus has no users."""
    try:
        return decoder.decode(reply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise TimedOut("the reply could not be read") from None
