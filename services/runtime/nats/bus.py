"""Connects one process to the bus, a NATS server, with nats-py (`docs/bus.md`, "The connection").

Handlers are synchronous, and their exceptions are logged. Publishing is synchronous and never
buffers across a disconnect: a message that cannot be sent now is not sent later, because the
sender's log still holds it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import msgspec

from schemas.errors import EngineFailed, NotFound, TimedOut, TooLarge, TurnwireError, Unavailable
from services.runtime.config.service import BusConfig
from services.runtime.listeners import Listeners
from services.runtime.nats.client import (
    MAX_UNANSWERED,
    NOWHERE,
    PING_INTERVAL_S,
    STOP_S,
    NatsClient,
    OnMessage,
    cancellable,
    reason,
    run_at_once,
    wait_within,
)
from services.runtime.nats.connection import ServerSearch, Subscription
from services.runtime.nats.requests import Requester
from services.runtime.observability.log_lines import RateLimit
from services.runtime.observability.memory import without
from services.runtime.observability.telemetry import FilteringBoundLogger

with without("aiohttp"):  # only for NATS over WebSocket: 95 ms and 10 MB
    import nats.errors
    import nats.js.errors
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

BUFFER_BYTES = 256 * 1024 * 1024
"""Limit of published bytes that the server has not read; then publishing fails. Credit allows far
less."""
NO_RESPONDERS = "503"
"""Status of an answer from NATS itself: the subject has no subscriber (NATS ADR-4)."""
NOTHING_FOUND = "404"
"""Status of an answer from JetStream: the stream has no such message."""
NO_MEMORY = "this process is out of memory"

Handler: TypeAlias = Callable[["Delivery"], None]
T = TypeVar("T")


class Delivery:
    """A message that a subscription received. `reply` answers it, if it is a request."""

    __slots__ = ("_bus", "data", "reply_to", "subject")

    def __init__(self, bus: "Bus", subject: str, data: bytes, reply_to: str) -> None:
        self._bus = bus
        self.subject = subject
        self.data = data
        self.reply_to = reply_to

    def reply(self, data: bytes) -> None:
        """Answers a request. Does nothing for other messages, or while the connection is down: the
        sender times out."""
        if self.reply_to:
            self._bus.publish(self.reply_to, data)


class Bus(Requester):
    """One process's connection to NATS."""

    def __init__(
        self,
        config: BusConfig,
        *,
        name: str,
        inbox_prefix: str,
        log: FilteringBoundLogger,
        on_fatal: Callable[[str], None],
    ) -> None:
        """
        Args:
            name: shown in NATS's own monitoring.
            inbox_prefix: first tokens of the subjects for replies, as in the user's permissions.
            on_fatal: called if the server closes the connection because of an error of this client,
                or if there is no memory to handle a message.
        """
        super().__init__(inbox_prefix)
        self._log = log
        self._on_fatal = on_fatal
        self.on_reconnect = Listeners[()](self._reconnect_failed)
        """Called after each reconnect."""
        self._search = ServerSearch(config, log, name=name, inbox_prefix=inbox_prefix)
        self.on_refused = self._search.on_refused
        """Called with each message that permissions forbid, in the server's words."""
        self._subscriptions = self._search.subscriptions
        self._client = NatsClient(NOWHERE, self._search.report_refusal)
        self._reconnecting: asyncio.Task[None] | None = None
        self._blocked = False
        self._failures = RateLimit()
        self.published = 0
        self.received = 0
        self.missing_buckets: set[str] = set()
        """The buckets that this process uses and does not find."""
        self.unwritable_buckets: set[str] = set()
        """The buckets that take no writes."""

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return self._client.is_connected

    @property
    def subjects(self) -> list[str]:
        """The subjects of all subscriptions."""
        return [subscription.subject for subscription in self._subscriptions]

    @property
    def max_payload(self) -> int:
        """The largest message in bytes that the server accepts."""
        return self._client.max_payload

    async def connect(self) -> None:
        """Connects; waits for a server that is not up yet.

        Raises:
            Unavailable: no server within `connect_timeout_s`, or one that refuses this client.
        """
        self._listen(self.inbox + "*", self._on_answer)
        self._client = await self._search.find_first()
        self._reconnecting = asyncio.create_task(self._reconnect())

    def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> bool:
        """Sends one message in this tick. Returns False if nothing was sent, because the connection
        is down.

        Raises:
            TooLarge: the server does not accept a message of this size.
        """
        client = self._client
        if not client.is_connected:
            return False
        if len(data) > client.max_payload:
            raise TooLarge(
                f"message of {len(data)} bytes is over the bus limit of {client.max_payload} bytes",
                details={"size_bytes": len(data), "limit_bytes": client.max_payload},
            )
        if client.pending_data_size > BUFFER_BYTES:
            # Never within credit; the message is lost, as on a connection that is down.
            if not self._blocked:
                self._log.error("bus.publish_blocked", subject=subject)
            self._blocked = True
            return False
        try:
            run_at_once(client.publish(subject, data, reply_to))
        except nats.errors.Error as error:
            self._log.error("bus.publish_failed", subject=subject, error=str(error))
            return False
        self.published += 1
        return True

    def _on_answer(self, message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        answer: bytes | TurnwireError = message.data
        status = message.headers.get("Status") if message.headers else None
        if status is not None and token in self.waiting:
            subject = self.waiting[token].subject
            if status == NO_RESPONDERS:
                answer = Unavailable(f"no process serves {subject}")
            elif status == NOTHING_FOUND:
                answer = NotFound(f"nothing on {subject}")
            else:
                answer = EngineFailed(f"status {status} on {subject}")
        self.answer(token, answer)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Calls `handler` for each message, one after the other, on the event loop. The handler
        must not block."""

        def deliver(message: Msg) -> None:
            # No service sends headers. JetStream does, when it answers a reader with a stored
            # value, on any subject that the reader named, whatever its permissions.
            if not message.headers:
                handler(Delivery(self, message.subject, message.data, message.reply))

        return self._listen(subject, deliver)

    def _listen(self, subject: str, on_message: OnMessage) -> Subscription:
        def receive(message: Msg) -> None:
            self.received += 1
            try:
                on_message(message)
            except MemoryError:
                # The message may be half handled; others can take over from a process that ends.
                self._on_fatal(NO_MEMORY)
            except (Exception, asyncio.CancelledError) as error:  # nats-py's reader would end
                self._report(message.subject, error)

        subscription = Subscription(subject, receive, self._subscriptions)
        if self.connected:
            subscription.start(self._client)
        return subscription

    def _report(self, subject: str, error: BaseException) -> None:
        """Logs that a message was not handled: one a second, because anyone on the bus can send
        many."""
        left_out = self._failures.admit()
        if left_out is None:
            return
        if isinstance(error, msgspec.DecodeError | UnicodeDecodeError | RecursionError):
            self._log.warning(
                "bus.unreadable", subject=subject, reason=str(error), left_out=left_out
            )
        else:
            self._log.error(
                "bus.handler_failed", subject=subject, left_out=left_out, exc_info=error
            )

    async def jetstream(
        self, call: Callable[[JetStreamContext], Awaitable[T]], timeout_s: float
    ) -> T:
        """Makes one call of nats-py's JetStream interface.

        Raises:
            NotFound: the stream or the message does not exist.
            Unavailable: the server has no JetStream or no such stream, or the connection is down.
            TimedOut: no answer within `timeout_s`.
            EngineFailed: JetStream refused the call.
        """
        try:
            result = await cancellable(call(self._client.jetstream(timeout=timeout_s)))
        except nats.js.errors.NotFoundError as error:
            raise NotFound(error.description or "not found") from error
        except nats.js.errors.APIError as error:
            if error.description is None:
                raise Unavailable("the server has no JetStream") from error
            raise EngineFailed(error.description) from error
        except nats.errors.TimeoutError as error:
            raise TimedOut(f"no answer from JetStream within {timeout_s:g} s") from error
        except nats.errors.Error as error:
            raise Unavailable(f"no answer from JetStream: {reason(error)}") from error
        self.published += 1
        self.received += 1
        return result

    async def flush(self, timeout_s: float = STOP_S) -> bool:
        """Waits until the server has everything that was published. Returns whether it has
        answered. Takes two round trips: not for the token path."""
        # nats-py sends a ping before pending messages: only the second ping follows them.
        answered = False
        for _ in range(2):
            if self.connected:
                answered = await wait_within(
                    timeout_s, self._client.flush(timeout=PING_INTERVAL_S * (MAX_UNANSWERED + 2))
                )
        return answered and self.connected

    async def close(self, timeout_s: float = STOP_S) -> None:
        """Sends what is pending and closes. Requests without an answer end with Unavailable.

        `timeout_s`: the limit for each of three answers of the server.
        """
        await self.flush(timeout_s)
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        for token in list(self.waiting):
            self.answer(token, Unavailable("the connection to the bus was closed"))
        await wait_within(timeout_s, self._client.close())

    async def _reconnect(self) -> None:
        while True:
            client = self._client
            await client.wait_closed()
            if client.fault is not None:
                why = reason(client.fault)
                self._log.error(
                    "bus.closed", reason=why, hint="the server found an error of this client"
                )
                self._on_fatal(f"the connection to NATS was closed for good: {why}")
                return
            self._blocked = False
            self._client = await self._search.find_next(client)
            await self.flush()
            self._log.info("bus.reconnected", url=self._search.servers)
            self.on_reconnect.call()

    def _reconnect_failed(self, error: Exception) -> None:
        self._log.error("bus.reconnect_handler_failed", exc_info=error)
