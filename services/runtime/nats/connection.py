"""Finds a NATS server for a process, when it starts and after each lost connection.

nats-py's own reconnection is off. It would send what was pending before the disconnect, which no
public call discards, and it does not begin while the old server does not read. Here each connection
is a new client, with empty buffers and with passwords and credentials that were just read.
"""

import asyncio
import random
from urllib.parse import SplitResult

from schemas.errors import Unavailable
from services.runtime.config.masking import mask_servers
from services.runtime.config.service import BusConfig
from services.runtime.listeners import Listeners, raise_error
from services.runtime.nats.client import STOP_S, NatsClient, OnMessage, reason, wait_within
from services.runtime.nats.login import parse_servers
from services.runtime.observability.memory import without
from services.runtime.observability.telemetry import FilteringBoundLogger

with without("aiohttp"):  # only for NATS over WebSocket: 95 ms and 10 MB
    import nats.errors
    from nats.aio.subscription import Subscription as NatsSubscription

WAIT_S = (0.2, 0.3)
"""Range of the time between two rounds over all servers, random so that a fleet does not reconnect
at once."""


class Subscription:
    """A subscription that survives reconnects."""

    def __init__(self, subject: str, receive: OnMessage, others: "list[Subscription]") -> None:
        self.subject = subject
        self._receive = receive
        self._live: NatsSubscription | None = None
        self._others = others
        others.append(self)

    def start(self, client: NatsClient) -> None:
        """Subscribes on a connection, in this tick."""
        self._live = client.listen(self.subject, self._receive)

    async def stop(self) -> None:
        """Unsubscribes; messages that have arrived are still handled."""
        if self in self._others:
            self._others.remove(self)
            if self._live is not None:
                await wait_within(STOP_S, self._live.drain())  # type: ignore[no-untyped-call]


class ServerSearch:
    """Connects to the first server that accepts this process, with all subscriptions."""

    def __init__(
        self, config: BusConfig, log: FilteringBoundLogger, *, name: str, inbox_prefix: str
    ) -> None:
        """`name`, `inbox_prefix`: as in `Bus`."""
        self.on_refused = Listeners[str](raise_error)
        """Called with each message that permissions forbid, in the server's words."""
        self.subscriptions: list[Subscription] = []
        self.servers = mask_servers(config.nats_url)
        """The setting `nats_url` without passwords."""
        self._config = config
        self._log = log
        self._name = name
        self._inbox_prefix = inbox_prefix

    async def find_first(self) -> NatsClient:
        """Connects; waits for a server that is not up yet.

        Raises:
            Unavailable: no server within `connect_timeout_s`, or one that refuses this client.
        """
        try:
            servers = parse_servers(self._config.nats_url)
            async with asyncio.timeout(self._config.connect_timeout_s):
                return await self._find(servers, is_first=True)
        except TimeoutError:
            raise Unavailable(f"no NATS server at {self.servers}") from None
        except Exception as error:
            raise Unavailable(
                f"cannot connect to NATS at {self.servers}: {reason(error)}"
            ) from error

    async def find_next(self, lost: NatsClient) -> NatsClient:
        """Connects again after a lost connection, however long that takes."""
        self._log.warning("bus.disconnected", url=self.servers, reason=reason(lost.last_error))
        # A cluster's other servers have the scheme, user and certificate name of the server that
        # announced them.
        cluster = {server.netloc: lost.url for server in lost.discovered_servers}
        servers = parse_servers(self._config.nats_url)
        return await self._find(cluster | servers, is_first=False)

    async def _find(self, servers: dict[str, SplitResult], *, is_first: bool) -> NatsClient:
        """Tries addresses until a server accepts this client. The first connection raises if a
        server refuses it."""
        refusal = ""
        is_logged = not is_first
        while True:
            for address, url in random.sample(list(servers.items()), len(servers)):
                try:
                    return await self._attempt(address, url)
                except (nats.errors.NoServersError, TimeoutError, ConnectionError):
                    continue
                except Exception as error:
                    if is_first and not _is_malformed(error):
                        raise
                    if reason(error) != refusal:  # not with every attempt
                        refusal = reason(error)
                        self._log.warning("bus.refused", reason=refusal)
            if not is_logged:
                is_logged = True
                self._log.info(
                    "bus.waiting", url=self.servers, limit_s=self._config.connect_timeout_s
                )
            await asyncio.sleep(random.uniform(*WAIT_S))

    async def _attempt(self, address: str, url: SplitResult) -> NatsClient:
        """Connects to an address and subscribes to everything."""
        client = NatsClient(url, self.report_refusal)
        try:
            await client.open(
                address, self._config, name=self._name, inbox_prefix=self._inbox_prefix
            )
            for subscription in self.subscriptions:
                subscription.start(client)
        except BaseException:
            await wait_within(0, client.close())
            raise
        return client

    def report_refusal(self, error: Exception) -> None:
        """Logs an error of permissions, after which a connection stays open, and calls
        `on_refused`."""
        self._log.warning("bus.refused", reason=reason(error))
        self.on_refused.call(reason(error))


def _is_malformed(error: Exception) -> bool:
    """Whether nats-py reports a malformed answer of a server. It quotes an -ERR of one."""
    return type(error) is nats.errors.Error and "'" not in str(error)
