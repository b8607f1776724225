"""The bus: one NATS connection, and the only module that imports nats.

What nats-py does in ways that would hurt a token pipeline is handled here (`docs/bus.md` tells each):

- callbacks are synchronous and total: an exception is logged, never raised into the client's tasks, where a
  CancelledError would silently end a subscription and an error in `error_cb` the whole read loop;
- publishing is synchronous and never buffers while the connection is down: a frame that cannot go now is not sent later
  behind the sender's back, the sender's log still holds it;
- the first connection has a deadline; after that reconnects go on for ever, and a connection that the client library
  gave up for good ends the process (`on_fatal`);
- a dead peer is noticed in 20 s instead of minutes;
- sizes are checked here, for the library closes the connection on a payload that is too large.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.typing import FilteringBoundLogger

from schemas.errors import TimedOut, TooLarge, Unavailable
from services.runtime.config import BusConfig
from services.runtime.config_sources import shown

PING_INTERVAL_S = 10
PENDING_BYTES = 256 * 1024 * 1024
"""Never reached: credit keeps far less under way. Below it publishing does not suspend."""

Handler = Callable[["Message"], None]


class Message:
    """One message. `reply` publishes an answer to whoever asked; a message that nobody waits for has none."""

    __slots__ = ("_bus", "data", "reply_to", "subject")

    def __init__(self, bus: "Bus", subject: str, data: bytes, reply_to: str) -> None:
        self._bus = bus
        self.subject = subject
        self.data = data
        self.reply_to = reply_to

    def reply(self, data: bytes) -> None:
        """Answers; does nothing where no answer is wanted or the connection is down (the asker times out)."""
        if self.reply_to:
            self._bus.publish(self.reply_to, data)


class Subscription:
    """A live subscription; `stop` ends it after what has already arrived was handled."""

    def __init__(self, stop: Callable[[], Awaitable[None]]) -> None:
        self._stop = stop

    async def stop(self) -> None:
        """Takes no more messages; those at hand are still handled."""
        await self._stop()


class Bus:
    """One process's connection to NATS."""

    def __init__(
        self,
        config: BusConfig,
        *,
        name: str,
        inbox_prefix: str,
        log: FilteringBoundLogger,
        on_fatal: Callable[[str], None],
        on_reconnect: Callable[[], None],
    ) -> None:
        """
        Args:
            name: shown in NATS's own monitoring.
            inbox_prefix: first tokens of the subjects on which replies come (a user's permissions name it).
            on_fatal: called once if the connection is lost for good.
            on_reconnect: called after each reconnect.
        """
        self._config = config
        self._name = name
        self._inbox_prefix = inbox_prefix
        self._log = log
        self._on_fatal = on_fatal
        self._on_reconnect = on_reconnect
        self._client = Client()
        self._closing = False
        self.published = 0
        self.received = 0
        self.dropped = 0
        """Messages that nats-py threw away because this process did not keep up."""

    @property
    def connected(self) -> bool:
        """Whether a publish would reach the server now."""
        return bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        """Largest message in bytes that the server takes."""
        return int(self._client.max_payload)

    async def connect(self) -> None:
        """Connects, waiting for a server that is not up yet.

        Raises:
            Unavailable: no server within `connect_timeout_s`.
        """
        # A float in spite of nats-py's annotation; random, so that a fleet does not come back in one instant.
        options: dict[str, Any] = {"reconnect_time_wait": 0.2 + random.random() * 0.1}
        if self._config.nats_user:
            options["user"] = self._config.nats_user
        if self._config.nats_password_file:
            options["password"] = await asyncio.to_thread(_read_secret, self._config.nats_password_file)
        if self._config.nats_creds_file:
            options["user_credentials"] = self._config.nats_creds_file
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                await self._client.connect(
                    servers=self._config.nats_url.split(","),
                    name=self._name,
                    inbox_prefix=self._inbox_prefix,
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    connect_timeout=2,
                    ping_interval=PING_INTERVAL_S,
                    max_outstanding_pings=2,
                    pending_size=PENDING_BYTES,
                    error_cb=self._error,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._reconnected,
                    closed_cb=self._closed,
                    **options,
                )
        except TimeoutError:
            raise Unavailable(f"no NATS server at {shown(self._config.nats_url)}") from None
        except (OSError, errors.Error) as error:
            raise Unavailable(f"cannot connect to NATS at {shown(self._config.nats_url)}: {error}") from error

    def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> bool:
        """Sends one message in this tick. False: the connection is down and nothing was sent.

        Raises:
            TooLarge: the server would not take a message of this size.
        """
        client = self._client
        if not client.is_connected or client.is_draining_pubs:
            return False
        if len(data) > client.max_payload:
            raise TooLarge(f"message of {len(data)} bytes is over the bus limit of {client.max_payload} bytes")
        sending = client.publish(subject, data, reply=reply_to)
        # `publish` is a coroutine that suspends only above `pending_size`, which credit keeps out of reach; driving it
        # here saves a task per message.
        try:
            sending.send(None)
        except StopIteration:
            self.published += 1
            return True
        except errors.Error as error:
            self._log.warning("bus.publish_failed", subject=subject, error=repr(error))
            return False
        sending.close()
        self._log.error("bus.publish_blocked", subject=subject)
        return False

    async def request(
        self, subject: str, data: bytes, timeout_s: float, *, headers: dict[str, str] | None = None
    ) -> bytes:
        """Asks and waits for one answer. `headers` go with the question; those of the answer are not told.

        Raises:
            Unavailable: nobody listens on the subject, or the connection is down.
            TimedOut: no answer within `timeout_s`.
            TooLarge: as `publish`.
        """
        if not self.connected:
            raise Unavailable("the connection to the bus is down")
        if len(data) > self._client.max_payload:
            raise TooLarge(f"message of {len(data)} bytes is over the bus limit of {self._client.max_payload} bytes")
        try:
            answer = await self._client.request(subject, data, timeout=timeout_s, headers=headers)
        except errors.NoRespondersError:
            raise Unavailable(f"nobody serves {subject}") from None
        except (errors.TimeoutError, TimeoutError):
            raise TimedOut(f"no answer on {subject} within {timeout_s:g} s") from None
        except errors.Error as error:
            raise Unavailable(f"the connection to the bus was lost: {error}") from error
        self.received += 1
        return bytes(answer.data)

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Calls `handler` for each message, one after the other, on the loop. The handler must not block."""

        async def receive(msg: Msg) -> None:
            self.received += 1
            try:
                handler(Message(self, msg.subject, msg.data, msg.reply))
            except Exception:
                # Never into nats-py: it would log and go on, or on CancelledError stop listening without a word.
                self._log.exception("bus.handler_failed", subject=msg.subject)

        subscription = await self._client.subscribe(subject, queue=queue, cb=receive)

        async def stop() -> None:
            if not self._client.is_closed and not self._client.is_draining:
                try:
                    await subscription.drain()  # type: ignore[no-untyped-call]
                except (errors.Error, OSError, RuntimeError) as error:
                    self._log.debug("bus.unsubscribe_failed", subject=subject, error=repr(error))

        return Subscription(stop)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Waits until the server has everything that was published. A round trip: not for the token path."""
        try:
            await self._client.flush(timeout=max(1, int(timeout_s)))
        except (errors.Error, OSError, RuntimeError) as error:
            self._log.debug("bus.flush_failed", error=repr(error))

    async def close(self) -> None:
        """Sends what is pending and closes."""
        self._closing = True
        if self._client.is_connected:
            await self.flush()
        try:
            await self._client.close()
        except (errors.Error, OSError, RuntimeError) as error:  # the server is gone, and there is no more to close
            self._log.debug("bus.close_failed", error=repr(error))

    async def _error(self, error: Exception) -> None:
        # Total: an exception from here ends nats-py's read loop while the connection looks alive.
        if isinstance(error, errors.SlowConsumerError):
            self.dropped += 1
        # Each failed attempt to connect comes here; `_disconnected` has said it, and `connect` says it if it fails.
        write = self._log.warning if self._client.is_connected else self._log.debug
        write("bus.error", error=repr(error))

    async def _disconnected(self) -> None:
        if not self._closing:
            self._log.warning("bus.disconnected", url=shown(self._config.nats_url))

    async def _reconnected(self) -> None:
        self._log.info("bus.reconnected", url=shown(self._config.nats_url))
        try:
            self._on_reconnect()
        except Exception:
            self._log.exception("bus.reconnect_handler_failed")

    async def _closed(self) -> None:
        if not self._closing:
            self._log.error("bus.closed", hint="the client library gave the connection up")
            self._on_fatal("the connection to NATS was closed for good")


def _read_secret(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip()


__all__ = ["Bus", "Handler", "Message", "Subscription"]
