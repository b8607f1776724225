"""One connection to NATS: nats-py's client as the bus uses it, and what its coroutines need around them."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult

from services.runtime.config import BusConfig
from services.runtime.nats_login import read_login, read_tls
from services.runtime.without import without

with without("aiohttp"):  # for NATS over WebSocket: 95 ms and 10 MB
    import nats.errors
    from nats.aio.client import Client, RawCredentials

ATTEMPT_S = 2
"""How long one server may take to accept a connection."""
PING_INTERVAL_S, MAX_UNANSWERED = 10, 2
"""A connection counts as lost after 30 s without an answer."""
CHECK_S = 1.0
"""How often `is_closed` is read: nats-py reports most ends of a connection, and not that to a stopped server."""
PERMISSION = "permissions violation"
"""In the one -ERR after which a connection stays open."""

NOWHERE = SplitResult("nats", "", "", "", "")

T = TypeVar("T")


class NatsClient(Client):
    """A connection to one server. Secrets are sent without TLS only where the URL allows that."""

    has_tls = False
    fault: Exception | None = None
    """The error for which the server closes this connection."""

    def __init__(
        self,
        url: SplitResult = NOWHERE,
        on_refused: Callable[[Exception], None] = lambda _error: None,
    ) -> None:
        """`on_refused`: called for what this client's user may not do, which the connection survives."""
        super().__init__()
        self.url = url
        self._on_refused = on_refused
        self._reported = asyncio.Event()
        """Set by an error, and by the end of the connection."""

    async def open(self, address: str, config: BusConfig, *, name: str, inbox_prefix: str) -> None:
        """Connects to a server, within `ATTEMPT_S`. Raises as `Client.connect`, ConnectionResetError and ValueError."""
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
                pending_size=0,  # no limit, like the next one: publishing and subscribing never wait
                flusher_queue_size=0,
                **await self._login(config),
            )
            await cancellable(connecting)
        self._check_tls()
        if not self.is_connected:  # nats-py ignores the end of the connection during the handshake
            raise ConnectionResetError("the server closed the connection")

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
        """Read when nats-py starts TLS, which it does only if the server requires it, whatever the URL has."""
        self.has_tls = True
        return super().ssl_context

    async def _login(self, config: BusConfig) -> dict[str, Any]:
        """The options of `connect` with secrets, which may have changed since the last attempt."""
        login = await read_login(config, self.url)
        if "credentials" in login:  # the token is for the check of TLS
            return {"user_credentials": RawCredentials(login["credentials"]), "token": self._secret("")}
        return {name: value if name == "user" else self._secret(value) for name, value in login.items()}

    def _secret(self, value: str) -> Callable[[], str]:
        """An option of `connect` that nats-py reads just before it is sent."""

        def checked() -> str:
            self._check_tls()
            return value

        return checked

    def _check_tls(self) -> None:
        """Raises ValueError where the URL requires TLS and the server does not start it."""
        if self.url.scheme == "tls" and not self.has_tls:
            raise ValueError("the server has no TLS")

    async def _failed(self, error: Exception) -> None:
        self._note_fault()
        self._reported.set()
        if PERMISSION in str(error):
            self._on_refused(error)

    async def _closed(self) -> None:
        self._reported.set()

    def _note_fault(self) -> None:
        """Keeps an -ERR before the end of the connection replaces it in `last_error`."""
        error = self.last_error
        if type(error) in (nats.errors.Error, nats.errors.AuthorizationError) and PERMISSION not in str(error):
            self.fault = error


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of nats-py that does not wait, without a task.

    A queue that a task empties in each tick would cost a tick more, and move errors away from the caller.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    work.close()
    raise nats.errors.ConnectionClosedError  # It waits only on a connection that is about to be closed.


async def cancellable(work: Awaitable[T]) -> T:
    """Awaits nats-py in a task of its own, so that a cancellation ends the wait whatever nats-py does with it.

    nats-py calls `asyncio.wait_for`, which in Python 3.11 drops a cancellation that comes in the tick of the result:
    an attempt to connect would then go on until its time limit.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.wait({task})
    finally:
        task.cancel()
    return task.result()


async def within(timeout_s: float, work: Awaitable[object]) -> None:
    """Waits for nats-py, but not longer than this, and whatever the outcome.

    The work goes on after that: the end of a ping's waiter would end nats-py's reader when the answer comes.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait({task}, timeout=timeout_s)


def reason(error: Exception | None) -> str:
    """The text of an error, without nats-py's prefix."""
    return str(error).removeprefix("nats: ").strip("'") or repr(error)
