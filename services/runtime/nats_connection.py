"""A client of NATS: subscriptions and requests over one connection at a time, which is made anew whenever it is lost.

Everything is called on the loop of `connect`. Messages go to their subscriptions from within `data_received`.
"""

import asyncio
import random
import secrets
import ssl
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from services.runtime import nats_protocol as wire
from services.runtime.nats_link import Identify, Link, NatsRefused, open_link
from services.runtime.nats_protocol import Delivered, Info, NatsProtocolError
from services.runtime.nats_servers import NatsServer, Servers

ATTEMPT_S = 2.0
"""How long one server may take for its handshake."""
WAIT_S = (0.2, 0.3)
"""Between two rounds over all servers; random in between, so that a fleet does not come back in one instant."""
CLOSE_S = 2.0
_STILL_OPEN = ("permissions violation", "invalid subject", "invalid publish subject")
"""What the server says and lets the connection live (NATS documentation, "Client Protocol": -ERR)."""

Receiver = Callable[[Delivered], None]
"""Takes a message. It must not raise."""


class NatsClosed(Exception):
    """There is no connection, and what was waited for will not come."""


class _Subscription(Struct, frozen=True):
    subject: str
    queue: str
    receive: Receiver


class NatsConnection:
    """One client. `connected` and `max_payload` are plain attributes because every publish reads them."""

    def __init__(
        self,
        urls: list[str],
        identify: Identify,
        inbox_prefix: str,
        *,
        on_disconnect: Callable[[str], None],
        on_reconnect: Callable[[], None],
        on_refusal: Callable[[str], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """
        Args:
            on_disconnect: the connection is lost, for this reason; attempts to make it anew begin.
            on_reconnect: there is one again, and the server knows every subscription.
            on_refusal: the server does not allow something, or does not let this client in; no reason to stop.
            on_fatal: the server found fault with this client itself; nothing will follow.

        None of them may raise.

        Raises:
            ValueError: a URL is none.
        """
        self._servers = Servers(urls, random.shuffle)
        self._identify = identify
        self._on_disconnect = on_disconnect
        self._on_reconnect = on_reconnect
        self._on_refusal = on_refusal
        self._on_fatal = on_fatal
        self._server: NatsServer
        self._cluster: list[str] = []
        self._link: Link
        self._reconnecting: asyncio.Task[None] | None = None
        self._refusal = ""
        self._up_since = 0.0
        self._closed = False
        self._subscriptions: dict[bytes, _Subscription] = {}
        self._receivers: dict[bytes, Receiver] = {}
        self._last_sid = 0
        self._inbox = f"{inbox_prefix}.{secrets.token_hex(8)}."
        self._waiting: dict[bytes, asyncio.Future[Delivered]] = {}
        """The requests that have no answer yet, by the last token of their inbox."""
        self._last_request = 0
        self.connected = False
        """What is published now reaches the server."""
        self.max_payload = Info().max_payload
        """Largest message in bytes that the server takes."""

    async def connect(self) -> None:
        """Tries until there is a connection; cancel it to give up.

        Raises:
            NatsRefused: a server does not want this client, or has no TLS where that is asked for.
            ValueError: `identify` has nothing to say, or a server's certificate does not fit.
        """
        self._loop = asyncio.get_running_loop()
        # One subscription for the answers to all requests: one of its own for each costs two messages and a round trip.
        self.subscribe(self._inbox + "*", self._answered)
        await self._find_server(first=True)

    def publish(self, subject: str, data: bytes, reply: str = "", headers: bytes = b"") -> None:
        """Sends a message; only while `connected`. `headers`: as `nats_protocol.encode_headers` makes them.

        Raises:
            ValueError: a subject that would not stay one word.
        """
        if headers:
            head = wire.publish_with_headers(subject, len(data), headers, reply)
        else:
            head = wire.publish(subject, len(data), reply)
        self._link.write_message(head, data)

    @property
    def full(self) -> bool:
        """The server has not taken so much of what was published that nothing should be added."""
        return self._link.full

    async def request(self, subject: str, data: bytes, timeout_s: float, headers: bytes = b"") -> Delivered:
        """Publishes and waits for one answer. One whose status is `NO_RESPONDERS` comes from the server.

        Raises:
            TimeoutError: there was none.
            NatsClosed: the connection was closed meanwhile.
            ValueError: as `publish`.
        """
        return await self.ask(subject, data, timeout_s, headers)

    def ask(self, subject: str, data: bytes, timeout_s: float, headers: bytes = b"") -> asyncio.Future[Delivered]:
        """As `request`: publishes now; what it returns and raises is in the future. Raises ValueError as `publish`."""
        self._last_request += 1
        token = str(self._last_request)
        self.publish(subject, data, self._inbox + token, headers)
        future: asyncio.Future[Delivered] = self._loop.create_future()
        key = token.encode()
        self._waiting[key] = future
        timer = self._loop.call_later(timeout_s, _expire, future)

        def over(_: object) -> None:
            timer.cancel()
            del self._waiting[key]

        future.add_done_callback(over)
        return future

    def subscribe(self, subject: str, receive: Receiver, queue: str = "") -> bytes:
        """Calls `receive` for each message from now on, over reconnects too; returns the subscription's id.

        Raises:
            ValueError: a name that would not stay one word.
        """
        self._last_sid += 1
        sid = str(self._last_sid).encode()
        command = wire.subscribe(sid, subject, queue)
        self._subscriptions[sid] = _Subscription(subject, queue, receive)
        self._receivers[sid] = receive
        if self.connected:
            self._link.write(command)
        return sid

    async def unsubscribe(self, sid: bytes, timeout_s: float) -> None:
        """Ends a subscription; what the server had sent before is still received."""
        if self._subscriptions.pop(sid, None) is None:
            return
        try:
            if self.connected:
                self._link.write(wire.unsubscribe(sid))
                await self.flush(timeout_s)
        finally:
            self._receivers.pop(sid, None)

    async def flush(self, timeout_s: float) -> None:
        """Waits until the server has handled all that was published.

        Raises:
            TimeoutError: it has not within the time.
            NatsClosed: there is no connection, or it was lost meanwhile.
        """
        if not self.connected:
            raise NatsClosed("the connection is down")
        try:
            async with asyncio.timeout(timeout_s):
                await self._link.ping()
        except (OSError, NatsRefused, NatsProtocolError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise NatsClosed(str(error)) from error

    async def close(self) -> None:
        """Sends what was published, and ends. Requests that have no answer end with `NatsClosed`."""
        was_connected = self.connected
        self._closed, self.connected = True, False
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(NatsClosed("the connection was closed"))
        if was_connected:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._link.close()
            except TimeoutError:
                self._link.end("the server did not take the rest")

    async def _find_server(self, *, first: bool) -> None:
        """Tries servers until one has taken this client. `first`: one that turns it away ends the search."""
        hurry = first or self._loop.time() - self._up_since > 1.0
        while True:
            server, anew = self._servers.next()
            if anew and not hurry:
                await asyncio.sleep(random.uniform(*WAIT_S))
            hurry = False
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    link = await open_link(server, self._identify, self)
            except (NatsRefused, ValueError) as error:  # a certificate that does not fit is a ValueError, too
                if first:
                    raise
                self._not_let_in(str(error))
            except (NatsProtocolError, ssl.SSLError) as error:
                self._not_let_in(str(error))
            except OSError:
                pass  # nobody there, or no answer: that the connection is down has been told
            else:
                self._established(link, server)
                return

    def _not_let_in(self, reason: str) -> None:
        if reason != self._refusal:  # once, and not with every attempt
            self._refusal = reason
            self._on_refusal(reason)

    def _established(self, link: Link, server: NatsServer) -> None:
        self._link, self._server, self._refusal = link, server, ""
        self._up_since = self._loop.time()
        self.connected = True
        self._servers.learn(self._cluster, server)
        for sid, subscription in self._subscriptions.items():
            link.write(wire.subscribe(sid, subscription.subject, subscription.queue))

    async def _reconnect(self) -> None:
        while not self._closed:
            await self._find_server(first=False)
            try:
                await self._link.ping()
            except (OSError, NatsRefused, NatsProtocolError):
                continue
            if self.connected:
                break
        self._reconnecting = None
        self._on_reconnect()

    def delivered(self, message: Delivered) -> None:
        """Of `nats_link.Owner`."""
        receive = self._receivers.get(message.sid)
        if receive is not None:
            receive(message)

    def _answered(self, message: Delivered) -> None:
        future = self._waiting.get(message.subject.rpartition(b".")[2])
        if future is not None and not future.done():
            future.set_result(message)

    def informed(self, info: Info) -> None:
        """Of `nats_link.Owner`."""
        self.max_payload, self._cluster = info.max_payload, info.connect_urls
        if self.connected:
            self._servers.learn(self._cluster, self._server)

    def refused(self, link: Link, reason: str) -> None:
        """Of `nats_link.Owner`."""
        said = reason.lower()
        if said.startswith(_STILL_OPEN):
            self._on_refusal(reason)
        elif said.startswith("stale connection"):
            link.end(reason)
        else:
            self._closed = True
            link.end(reason)
            self._on_fatal(reason)

    def lost(self, link: Link, reason: str) -> None:
        """Of `nats_link.Owner`."""
        self.connected = False
        if not self._closed:
            self._on_disconnect(reason)
            if self._reconnecting is None:
                self._reconnecting = self._loop.create_task(self._reconnect())


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
