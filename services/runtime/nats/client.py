"""One connection to NATS: nats-py's client for the bus, and helpers for its coroutines."""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import SplitResult

from services.runtime.config.service import BusConfig
from services.runtime.nats.login import read_login, read_tls
from services.runtime.observability.memory import without

with without("aiohttp"):  # only for NATS over WebSocket: 95 ms and 10 MB
    import nats.aio.client
    import nats.errors
    from nats.aio.client import Client, RawCredentials
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.protocol import parser

ATTEMPT_S = 2
"""How long one server may take to accept a connection."""
PING_INTERVAL_S, MAX_UNANSWERED, MAX_UNANSWERED_IN_CLUSTER = 2, 14, 2
"""After 30 s without an answer a connection counts as lost. A single server is waited for that
long, because what was published reaches it when it goes on; where others can take over, the limit
is 6 s."""
CHECK_S = 1.0
"""Interval for reading `is_closed`: nats-py reports most ends of a connection, but not that to a
stopped server."""
STOP_S = 2.0
"""How long the end of a subscription or a connection waits for each answer of the server."""
PERMISSION = "permissions violation"
"""Text in the one -ERR after which a connection stays open."""

# NATS allows vertical tabs and form feeds in subjects. With nats-py's own patterns, such a message
# ends the connection.
parser.MSG_RE = re.compile(rb"\AMSG ([^ \t\r\n]+) (\d+) (([^ \t\r\n]+) )?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG ([^ \t\r\n]+) (\d+) (([^ \t\r\n]+) )?(\d+) (\d+)\r\n")

# nats-py reads 32 KB at a time, and stops reading when 64 KB wait. A prompt's message has 200 KB
# and more.
nats.aio.client.DEFAULT_BUFFER_SIZE = 512 * 1024
WRITE_BUFFER = 64 * 1024
"""While the transport holds more bytes, what is published waits in nats-py's own list."""
NOWHERE = SplitResult("nats", "", "", "", "")

T = TypeVar("T")
OnMessage: TypeAlias = Callable[[Msg], None]
"""Called by the reader of a connection with each message. Must not raise."""


class NatsClient(Client):
    """A connection to one server. Secrets are sent without TLS only where the URL allows that."""

    has_tls = False
    fault: Exception | None = None
    """The error for which the server closes this connection."""

    def __init__(self, url: SplitResult, on_refused: Callable[[Exception], None]) -> None:
        """`on_refused`: called with an error of permissions, after which the connection stays
        open."""
        super().__init__()
        self.url = url
        self._on_refused = on_refused
        self._reported = asyncio.Event()
        """Set by an error, and by the end of the connection."""
        self._receivers: dict[Subscription | None, OnMessage] = {}
        self._socket: asyncio.WriteTransport | None = None
        """The connection, once it is open."""
        self._ending: asyncio.Task[None] | None = None
        """Handles an error that may end the connection."""

    async def open(self, address: str, config: BusConfig, *, name: str, inbox_prefix: str) -> None:
        """Connects to a server, within `ATTEMPT_S`. Raises as `Client.connect`,
        ConnectionResetError and ValueError."""
        async with asyncio.timeout(ATTEMPT_S):
            connecting = self.connect(
                servers=[f"{self.url.scheme}://{address}"],
                error_cb=self._failed,
                closed_cb=self._closed,
                name=name,
                connect_timeout=ATTEMPT_S,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=MAX_UNANSWERED,
                tls=await read_tls(config),
                tls_hostname=self.url.hostname,
                inbox_prefix=inbox_prefix,
                pending_size=0,  # no limits, so that publishing and subscribing never wait
                flusher_queue_size=0,
                **await self._login(config),
            )
            await cancellable(connecting)
        if self.discovered_servers or "," in config.nats_url:
            self.options["max_outstanding_pings"] = MAX_UNANSWERED_IN_CLUSTER
        self._check_tls()
        if not self.is_connected:  # nats-py ignores the end of the connection during the handshake
            raise ConnectionResetError("the server closed the connection")
        self._use_socket_directly()

    async def wait_closed(self) -> None:
        """Returns when the connection has ended."""
        while not self.is_closed:
            self._reported.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._reported.wait()
        self._note_fault()

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """The context of TLS. nats-py reads it when it starts TLS, which only the server decides,
        not the URL."""
        self.has_tls = True
        return super().ssl_context

    async def _login(self, config: BusConfig) -> dict[str, Any]:
        """The options of `connect` with secrets, which may have changed since the last attempt."""
        login = await read_login(config, self.url)
        if "credentials" in login:  # the token only checks TLS
            return {
                "user_credentials": RawCredentials(login["credentials"]),
                "token": self._secret(""),
            }
        return {
            name: value if name == "user" else self._secret(value) for name, value in login.items()
        }

    def _secret(self, value: str) -> Callable[[], str]:
        """Makes an option of `connect` that nats-py reads just before it sends it."""

        def checked() -> str:
            self._check_tls()
            return value

        return checked

    def _check_tls(self) -> None:
        """Raises ValueError if the URL requires TLS and the server has not started it."""
        if self.url.scheme == "tls" and not self.has_tls:
            raise ValueError("the server has no TLS")

    def listen(self, subject: str, receive: OnMessage) -> Subscription:
        """Subscribes in this tick. The reader calls `receive`: a queue and a task for each
        subscription would cost a tick, and limits at which messages are dropped."""
        subscription = run_at_once(self.subscribe(subject))
        self._receivers[subscription] = receive
        return subscription

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Drops a message with a subject or headers that nats-py cannot decode. Its reader would
        end, and the connection would hang until the pings fail."""
        with suppress(ValueError, IndexError):
            receive = self._receivers.get(self._subs.get(sid))
            if receive is None:
                await super()._process_msg(sid, subject, reply, data, headers)
            else:
                parsed = await self._process_headers(headers) if headers else None
                receive(self._build_message(sid, subject, reply, data, parsed))

    def _use_socket_directly(self) -> None:
        """Reads and writes without nats-py's tasks for that.

        They would cost 15 to 20 of 93 us to receive and publish a short message: a future, a queue
        and a turn of the loop for each. What the reading task already has is parsed in this tick,
        before more can arrive. It remains, for the end of the connection.
        """
        streams: Any = self._transport
        streams._io_reader.feed_data = self._parse
        self._socket = streams._io_writer.transport

    def _parse(self, data: bytes) -> None:
        """Handles bytes that have arrived."""
        try:
            run_at_once(self._ps.parse(data))
        except Exception as error:
            self._end_by(self._process_op_err(error))

    async def _process_err(self, err_msg: str) -> None:
        """Handles an -ERR of the server in a task, because the end of a connection waits."""
        self._end_by(super()._process_err(err_msg))

    def _end_by(self, work: Coroutine[Any, Any, None]) -> None:
        self._ending = asyncio.create_task(work)
        self._ending.add_done_callback(_retrieve)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Writes what is pending, while the server keeps up. uvloop sends everything that was
        written in a tick at its end."""
        socket = self._socket
        if socket is None or force_flush or not self.is_connected:
            return await super()._flush_pending(force_flush)
        if socket.get_write_buffer_size() > WRITE_BUFFER:
            return await super()._flush_pending()
        socket.writelines(self._pending)
        self._pending = []
        self._pending_data_size = 0
        return None

    def _process_disconnect(self) -> None:
        """Discards what is pending. nats-py would send it on the lost connection, which fails or
        does not return."""
        super()._process_disconnect()
        self._pending = []
        self._pending_data_size = 0

    async def _failed(self, error: Exception) -> None:
        self._note_fault()
        self._reported.set()
        if PERMISSION in str(error):
            self._on_refused(error)

    async def _closed(self) -> None:
        self._reported.set()

    def _note_fault(self) -> None:
        """Saves an -ERR, because the end of the connection replaces it in `last_error`."""
        error = self.last_error
        if type(error) in (
            nats.errors.Error,
            nats.errors.AuthorizationError,
        ) and PERMISSION not in str(error):
            self.fault = error


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of nats-py that does not wait, without a task.

    A task with a queue would cost one tick more, and the caller would not get its errors.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    work.close()
    raise nats.errors.ConnectionClosedError  # it waits only if the connection is about to be closed


async def cancellable(work: Awaitable[T]) -> T:
    """Awaits nats-py in a task, so that a cancellation ends the wait even if nats-py loses it.

    nats-py calls `asyncio.wait_for`, which in Python 3.11 drops a cancellation that comes in the
    tick of the result: an attempt to connect would then continue until its time limit.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieve)
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    return task.result()


async def wait_within(timeout_s: float, work: Awaitable[object]) -> bool:
    """Waits for nats-py, at most `timeout_s`. Returns whether it has ended, whatever the outcome.

    The work continues afterwards: without a ping's waiter, nats-py's reader would end when the
    answer arrives.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieve)
    await asyncio.wait({task}, timeout=timeout_s)
    return task.done()


def _retrieve(done: "asyncio.Future[Any]") -> None:
    """Takes a task's exception, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()


def reason(error: Exception | None) -> str:
    """The text of an error without nats-py's prefix."""
    return str(error).removeprefix("nats: ").strip("'") or repr(error)
