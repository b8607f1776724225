"""The bus: one NATS connection, and what the pipeline may rely on in it (`docs/bus.md`).

- Handlers are synchronous, and called from within the reading of the socket: nothing is between a message's last byte
  and its handler. They are total: an exception is logged and goes no further.
- Publishing is synchronous and never buffers while the connection is down: a frame that cannot go now is not sent later
  behind the sender's back, the sender's log still holds it.
- The first connection has a deadline; after that attempts to connect anew go on for ever, and a connection that the
  server will not have again ends the process (`on_fatal`).
- Sizes are checked here: the server closes the connection on a payload that is too large.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from schemas.errors import TimedOut, TooLarge, TurnwireError, Unavailable
from services.runtime.config import BusConfig
from services.runtime.config_sources import shown
from services.runtime.nats_connection import NatsClosed, NatsConnection
from services.runtime.nats_credentials import parse_credentials, sign
from services.runtime.nats_link import NatsRefused
from services.runtime.nats_protocol import NO_RESPONDERS, Delivered, Info, encode_headers, status_of
from services.runtime.nats_servers import NatsServer

STOP_S = 2.0

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
        self._log = log
        self._on_fatal = on_fatal
        self._on_reconnect = on_reconnect
        self._inbox_prefix = inbox_prefix
        self._connection: NatsConnection | None = None
        self._blocked = False
        self.before_close: list[Callable[[], None]] = []
        """Called while everything can still be published."""
        self.published = 0
        self.received = 0

    @property
    def connected(self) -> bool:
        """Whether a publish would reach the server now."""
        return self._connection is not None and self._connection.connected

    @property
    def max_payload(self) -> int:
        """Largest message in bytes that the server takes."""
        return Info().max_payload if self._connection is None else self._connection.max_payload

    async def connect(self) -> None:
        """Connects, waiting for a server that is not up yet.

        Raises:
            Unavailable: no server within `connect_timeout_s`, or one that does not know this user.
        """
        url = shown(self._config.nats_url)
        try:
            self._connection = NatsConnection(
                self._config.nats_url.split(","),
                self._identify,
                self._inbox_prefix,
                on_disconnect=self._disconnected,
                on_reconnect=self._reconnected,
                on_refusal=self._refused,
                on_fatal=self._given_up,
            )
            async with asyncio.timeout(self._config.connect_timeout_s):
                await self._connection.connect()
        except TimeoutError:
            raise Unavailable(f"no NATS server at {url}") from None
        except (NatsRefused, ValueError) as error:
            raise Unavailable(f"cannot connect to NATS at {url}: {error}") from error

    async def _identify(self, server: NatsServer, info: Info) -> dict[str, Any]:
        """What CONNECT says; secrets are read anew each time, so that they may be changed while this process runs."""
        config = self._config
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "turnwire",
            "protocol": 1,
            "headers": info.headers,
            "no_responders": info.headers,
            "name": self._name,
        }
        if config.nats_creds_file:
            credentials = parse_credentials(await asyncio.to_thread(_read, config.nats_creds_file))
            return {**options, "jwt": credentials.jwt, "sig": sign(credentials.seed, info.nonce)}
        if config.nats_password_file:
            password = (await asyncio.to_thread(_read, config.nats_password_file)).strip()
            return {**options, "user": config.nats_user or server.user, "pass": password}
        if config.nats_user:
            return {**options, "user": config.nats_user, "pass": server.password or ""}
        if server.password is not None:
            return {**options, "user": server.user, "pass": server.password}
        return {**options, "auth_token": server.user} if server.user else options

    def publish(self, subject: str, data: bytes, *, reply_to: str = "") -> bool:
        """Sends one message in this tick. False: the connection is down and nothing was sent.

        Raises:
            TooLarge: the server would not take a message of this size.
        """
        connection = self._connection
        if connection is None or not connection.connected:
            return False
        if len(data) > connection.max_payload:
            raise _too_large(data, connection)
        if connection.full:
            return self._cannot_take(subject)
        try:
            connection.publish(subject, data, reply_to)
        except ValueError as error:
            self._log.error("bus.publish_failed", subject=subject, error=str(error))
            return False
        self.published += 1
        return True

    async def request(
        self, subject: str, data: bytes, timeout_s: float, *, headers: dict[str, str] | None = None
    ) -> bytes:
        """Asks and waits for one answer. `headers` go with the question; those of the answer are not told.

        Raises:
            Unavailable: nobody listens on the subject, or the connection is down.
            TimedOut: no answer within `timeout_s`.
            TooLarge: as `publish`.
        """
        asked = self._ask(subject, data, timeout_s, encode_headers(headers) if headers else b"")
        try:
            return self._answer(subject, await asked)
        except TimeoutError:
            raise _no_answer(subject, timeout_s) from None
        except NatsClosed as error:
            raise _lost(error) from error

    def ask(
        self, subject: str, data: bytes, timeout_s: float, on_answer: Callable[[bytes | TurnwireError], None]
    ) -> Callable[[], object]:
        """As `request`, without a task: the question is sent in this tick, `on_answer` gets the answer or the error.

        Returns what to call in order not to hear of it. `on_answer` must not raise. Raises as `request` for what is
        known at once.
        """

        def known(asked: asyncio.Future[Delivered]) -> None:
            if asked.cancelled():
                return
            try:
                answer: bytes | TurnwireError = self._answer(subject, asked.result())
            except TimeoutError:
                answer = _no_answer(subject, timeout_s)
            except NatsClosed as error:
                answer = _lost(error)
            except Unavailable as error:
                answer = error
            on_answer(answer)

        asked = self._ask(subject, data, timeout_s, b"")
        asked.add_done_callback(known)
        return asked.cancel

    def _ask(self, subject: str, data: bytes, timeout_s: float, fields: bytes) -> asyncio.Future[Delivered]:
        connection = self._connection
        if connection is None or not connection.connected:
            raise Unavailable("the connection to the bus is down")
        if len(data) + len(fields) > connection.max_payload:
            raise _too_large(data, connection)
        try:
            return connection.ask(subject, data, timeout_s, fields)
        except ValueError as error:
            raise _lost(error) from error

    def _answer(self, subject: str, answer: Delivered) -> bytes:
        if answer.headers and status_of(answer.headers) == NO_RESPONDERS:
            raise Unavailable(f"nobody serves {subject}")
        self.published += 1
        self.received += 1
        return answer.payload

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Calls `handler` for each message, one after the other, on the loop. The handler must not block."""
        connection = self._connection
        assert connection is not None, "connect first"

        def receive(delivered: Delivered) -> None:
            self.received += 1
            try:
                handler(Message(self, delivered.subject.decode(), delivered.payload, delivered.reply.decode()))
            except (Exception, asyncio.CancelledError):
                # Never into the reading of the socket, whose other messages are somebody else's.
                self._log.exception("bus.handler_failed", subject=delivered.subject.decode(errors="replace"))

        sid = connection.subscribe(subject, receive, queue)

        async def stop() -> None:
            try:
                await connection.unsubscribe(sid, STOP_S)
            except (NatsClosed, TimeoutError) as error:
                self._log.debug("bus.unsubscribe_failed", subject=subject, error=repr(error))

        return Subscription(stop)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Waits until the server has everything that was published. A round trip: not for the token path."""
        try:
            if self._connection is not None:
                await self._connection.flush(timeout_s)
        except (NatsClosed, TimeoutError) as error:
            self._log.debug("bus.flush_failed", error=repr(error))

    async def close(self) -> None:
        """Sends what is pending and closes."""
        for last in self.before_close:
            last()
        await self.flush()
        if self._connection is not None:
            await self._connection.close()

    def _cannot_take(self, subject: str) -> bool:
        # Never with credit in force; whatever got here is lost, as on a connection that is down.
        if not self._blocked:
            self._log.error("bus.publish_blocked", subject=subject)
        self._blocked = True
        return False

    def _disconnected(self, reason: str) -> None:
        self._blocked = False
        self._log.warning("bus.disconnected", url=shown(self._config.nats_url), reason=reason)

    def _reconnected(self) -> None:
        self._log.info("bus.reconnected", url=shown(self._config.nats_url))
        try:
            self._on_reconnect()
        except Exception:
            self._log.exception("bus.reconnect_handler_failed")

    def _refused(self, reason: str) -> None:
        self._log.warning("bus.refused", reason=reason)

    def _given_up(self, reason: str) -> None:
        self._log.error("bus.closed", reason=reason, hint="the server will not have this connection again")
        self._on_fatal(f"the connection to NATS was closed for good: {reason}")


def _no_answer(subject: str, timeout_s: float) -> TimedOut:
    return TimedOut(f"no answer on {subject} within {timeout_s:g} s")


def _lost(error: Exception) -> Unavailable:
    return Unavailable(f"the connection to the bus was lost: {error}")


def _too_large(data: bytes, connection: NatsConnection) -> TooLarge:
    return TooLarge(f"message of {len(data)} bytes is over the bus limit of {connection.max_payload} bytes")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


__all__ = ["Bus", "Handler", "Message", "Subscription"]
