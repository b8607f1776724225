"""One TCP or TLS connection to one NATS server, from its handshake to its end."""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from services.runtime import nats_protocol as wire
from services.runtime.nats_protocol import Delivered, Info, NatsProtocolError, Parser, Pinged, Ponged, Refused
from services.runtime.nats_servers import NatsServer

PING_INTERVAL_S = 10.0
MAX_UNANSWERED = 2
"""With one more ping due the connection counts as lost: a dead peer is noticed in 30 s instead of minutes."""
BUFFER_BYTES = 256 * 1024 * 1024
"""Written and not yet taken by the server. Over it nothing more is accepted; credit keeps far less under way."""
_WHOLE_BYTES = 32 * 1024
"""A message below it is written in one piece: copying it costs less than the vectors of a gathered write."""

Identify = Callable[[NatsServer, Info], Awaitable[dict[str, Any]]]
"""What CONNECT says to a server that has told of itself. Raises ValueError where it cannot tell."""


class NatsRefused(Exception):
    """The server said -ERR, or has not what is needed."""


class Owner(Protocol):
    """Whoever has a link hears from it. Nothing here may raise."""

    def delivered(self, message: Delivered) -> None:
        """A message for one of the subscriptions."""

    def informed(self, info: Info) -> None:
        """The server tells something new of itself."""

    def refused(self, link: "Link", reason: str) -> None:
        """The server says -ERR after the handshake."""

    def lost(self, link: "Link", reason: str) -> None:
        """The link has ended. Called once, and only after a handshake that succeeded."""


class Link(asyncio.Protocol):
    """One connection. uvloop sends what a tick writes in one system call, at the tick's end."""

    def __init__(self, owner: Owner) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._parser = Parser()
        self._transport: asyncio.Transport
        self._opening: asyncio.Future[Info] = self._loop.create_future()
        self._opening.add_done_callback(_heard)
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        """Who waits for the answers to the pings that were sent, in their order."""
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._open = False
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self.full = False
        """More than `BUFFER_BYTES` wait for the server to take them."""

    async def open(self, server: NatsServer, identify: Identify) -> None:
        """The handshake, up to the server's first PONG. Cancel it to give up.

        Raises:
            NatsRefused: the server does not want this client, or has no TLS where that is asked for.
            NatsProtocolError: it does not speak NATS.
            OSError: the connection was lost, or TLS failed.
            ValueError: `identify` cannot tell who this is.
        """
        try:
            info = await self._opening
            if server.tls or info.tls_required:
                await self._start_tls(server, info)
            self._owner.informed(info)
            self.write(wire.connect(await identify(server, info)))
            await self.ping()
        except BaseException:
            self.end("the handshake failed")
            raise
        self._open = True
        self._timer = self._loop.call_later(PING_INTERVAL_S, self._keep_alive)

    async def _start_tls(self, server: NatsServer, info: Info) -> None:
        if not (info.tls_required or info.tls_available):
            raise NatsRefused("the server has no TLS")
        self._parser = Parser()  # what came in the clear behind INFO is nobody's word
        secured = await self._loop.start_tls(
            self._transport, self, ssl.create_default_context(), server_hostname=server.certificate_host
        )
        if secured is None:
            raise ConnectionResetError("the connection was lost")
        self._take(secured)

    def write(self, data: bytes) -> None:
        """Sends some bytes of the protocol."""
        self._transport.write(data)

    def write_message(self, head: bytes, payload: bytes) -> None:
        """Sends a PUB or HPUB line and its payload."""
        if len(payload) < _WHOLE_BYTES:
            self._transport.write(b"%b%b\r\n" % (head, payload))
        else:
            self._transport.writelines((head, payload, b"\r\n"))

    def ping(self) -> asyncio.Future[None]:
        """Done once the server has handled all that was written before. Raises OSError, NatsRefused and
        NatsProtocolError as `open`, where the connection ends before."""
        future = self._loop.create_future()
        future.add_done_callback(_heard)
        self._pongs.append(future)
        self.write(wire.PING)
        return future

    def end(self, reason: str, error: Exception | None = None) -> None:
        """Gives the connection up at once; what is not sent yet is not sent."""
        if self._ended.done():
            return
        self._ended.set_result(reason)
        if self._timer is not None:
            self._timer.cancel()
        error = error or ConnectionResetError(reason)
        for future in (self._opening, *self._pongs):
            if future is not None and not future.done():
                future.set_exception(error)
        self._pongs.clear()
        self._transport.abort()
        if self._open:
            self._owner.lost(self, reason)

    async def close(self) -> None:
        """Ends the connection after everything that was written has been sent. The owner is not told."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended.done():
            self._transport.close()
        await asyncio.shield(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._take(cast(asyncio.Transport, transport))

    def _take(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Of asyncio. Messages are handled here and now: no task, queue or tick is between them and their handlers."""
        try:
            said = self._parser.feed(data)
        except NatsProtocolError as error:
            self.end(str(error), error)
            return
        deliver = self._owner.delivered
        for item in said:
            if type(item) is Delivered:
                deliver(item)
            else:
                self._control(item)

    def _control(self, said: wire.Said) -> None:
        if self._ended.done():
            return
        match said:
            case Pinged():
                self.write(wire.PONG)
            case Ponged():
                self._unanswered = 0
                future = self._pongs.popleft() if self._pongs else None
                if future is not None and not future.done():
                    future.set_result(None)
            case Info() if not self._opening.done():
                self._opening.set_result(said)
            case Info():
                self._owner.informed(said)
            case Refused(reason):
                if self._open:
                    self._owner.refused(self, reason)
                else:
                    self.end(reason, NatsRefused(reason))

    def _keep_alive(self) -> None:
        if self._unanswered >= MAX_UNANSWERED:
            self.end("the server does not answer")
            return
        self._unanswered += 1
        self._pongs.append(None)
        self.write(wire.PING)
        self._timer = self._loop.call_later(PING_INTERVAL_S, self._keep_alive)

    def pause_writing(self) -> None:
        """Of asyncio."""
        self.full = True

    def resume_writing(self) -> None:
        """Of asyncio."""
        self.full = False

    def connection_lost(self, error: Exception | None) -> None:
        """Of asyncio."""
        self.end(str(error) if error else "the server closed the connection")


def _heard(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # one that nobody waits for any more is no news for asyncio's log


async def open_link(server: NatsServer, identify: Identify, owner: Owner) -> Link:
    """A connection that is ready for use. Raises as `Link.open`; cancel it to give up."""
    link = Link(owner)
    await asyncio.get_running_loop().create_connection(lambda: link, server.host, server.port)
    await link.open(server, identify)
    return link
