"""Fetches images by URL, from the hosts that the operator allows.

Private addresses are never reached: each address of a name is checked, and the connection goes to a
checked address. A redirect is an error, because it would lead past the list of hosts.
"""

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from cachetools import LRUCache
from typing_extensions import override

from services.frontend.content.urls import MAX_URL_CHARS, host_of, is_public, matches
from services.frontend.http.bodies import read_until
from services.images.image_data import MAX_BYTES
from services.runtime.config.base import MIB
from services.runtime.observability.telemetry import FilteringBoundLogger

TIMEOUT_S = 10.0
"""Limit of one image."""
CACHE_BYTES = 64 * MIB
"""Agents send every URL again with every request."""
FAILED_S = 60.0
"""The time for which a failure is remembered."""
_ENTRY_BYTES = 256
_CONNECTIONS = 8
"""Connections to one host."""
_OK = 200
_Wanted: TypeAlias = tuple[str | None, str]
"""The tenant that wants an image, and its URL."""


class _FetchedImage(NamedTuple):
    """The result of a fetch."""

    data: bytes | None
    """None where the fetch failed."""
    until: float
    """The event loop's time until which this is used."""


class PublicResolver(AbstractResolver):
    """Resolves names to public addresses only."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await self._resolver.resolve(host, port, family)
        if not all(is_public(address["host"]) for address in addresses):
            raise OSError(f"{host} has a private address")
        return addresses

    @override
    async def close(self) -> None:
        await self._resolver.close()


def public_connector() -> aiohttp.BaseConnector:
    """Makes a connector that reaches public addresses only."""
    resolver = PublicResolver(aiohttp.DefaultResolver())
    return aiohttp.TCPConnector(resolver=resolver, limit_per_host=_CONNECTIONS)


class ImageFetcher:
    """Fetches images, with a cache."""

    def __init__(
        self,
        hosts: Sequence[str],
        log: FilteringBoundLogger,
        connector: Callable[[], aiohttp.BaseConnector],
    ) -> None:
        """`hosts`: host names; `*.example.org`: all below `example.org`."""
        self._hosts = hosts
        self._log = log
        self._connector = connector
        self._client: aiohttp.ClientSession | None = None
        self._fetched: LRUCache[_Wanted, _FetchedImage] = LRUCache(CACHE_BYTES, _size)
        self._fetching: dict[_Wanted, asyncio.Task[bytes | None]] = {}

    def allows(self, url: str) -> bool:
        """Returns whether an image may be fetched."""
        host = host_of(url, ("https",))
        if host is None or len(url) > MAX_URL_CHARS or not is_public(host):
            return False
        return any(matches(host, name) for name in self._hosts)

    async def fetch(self, url: str, tenant: str | None) -> bytes | None:
        """Returns the data; None if it cannot be fetched within the limits. `url` is one that
        `allows` allows.

        Requests for the same image wait for one fetch. A failure is remembered for a minute.
        """
        wanted = tenant, url
        fetched = self._fetched.get(wanted)
        if fetched is not None and asyncio.get_running_loop().time() < fetched.until:
            return fetched.data
        task = self._fetching.get(wanted)
        if task is None:
            task = asyncio.create_task(self._fetch(wanted), name="image fetch")
            self._fetching[wanted] = task
            task.add_done_callback(lambda _: self._fetching.pop(wanted))
        return await asyncio.shield(task)

    async def _fetch(self, wanted: _Wanted) -> bytes | None:
        _, url = wanted
        try:
            async with asyncio.timeout(TIMEOUT_S):
                data = await self._get(url)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            until = asyncio.get_running_loop().time() + FAILED_S
            self._fetched[wanted] = _FetchedImage(None, until)
            # Neither the URL, which may be signed, nor the error's text, which may contain it.
            self._log.warning("image.fetch_failed", host=host_of(url), error=type(error).__name__)
            return None
        self._fetched[wanted] = _FetchedImage(data, math.inf)
        return data

    async def _get(self, url: str) -> bytes:
        async with self._session().get(url, allow_redirects=False) as response:
            if response.status != _OK:
                raise ValueError(f"status {response.status}")
            data = await read_until(response.content, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return data

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=self._connector(),
                headers={"accept": "image/*", "accept-encoding": "identity"},
                auto_decompress=False,
                # a cookie for one tenant's URL must not open another's
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._client

    async def context(self, _app: object) -> AsyncIterator[None]:
        """Closes the connections when the application ends. For `Application.cleanup_ctx`."""
        yield
        if self._client is not None:
            await self._client.close()


def _size(fetched: _FetchedImage) -> int:
    """Returns the size of an entry of the cache."""
    return len(fetched.data or b"") + _ENTRY_BYTES
