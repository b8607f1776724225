"""Fetches images by URL, from the hosts that the operator allows.

Private addresses are never reached: each address of a name is checked, and the connection goes to a
checked address. A redirect is an error, because it would lead past the list of hosts.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from cachetools import LRUCache, TTLCache
from typing_extensions import override

from services.frontend.content.urls import MAX_URL_CHARS, host_of, is_public, matches
from services.images.image import MAX_BYTES
from services.runtime.observability.telemetry import FilteringBoundLogger

TIMEOUT_S = 10.0
"""Limit of one image."""
CACHE_BYTES = 64 * 1024 * 1024
"""Agents send every URL again with every request."""
FAILED_S = 60.0
"""The time for which a failure is remembered: agents send every URL again with every request."""
MAX_FAILED = 4096
_ENTRY_BYTES = 256
_CONNECTIONS = 8
"""Connections to one host."""
_OK = 200
_Wanted: TypeAlias = tuple[str | None, str]
"""The tenant that wants an image, and its URL."""


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
        self._images: LRUCache[_Wanted, bytes] = LRUCache(CACHE_BYTES, _size)
        self._failed: TTLCache[_Wanted, None] = TTLCache(MAX_FAILED, FAILED_S)
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
        if wanted in self._images or wanted in self._failed:
            return self._images.get(wanted)
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
            self._failed[wanted] = None
            # Neither the URL, which may be signed, nor the error's text, which may contain it.
            self._log.warning("image.fetch_failed", host=host_of(url), error=type(error).__name__)
            return None
        self._images[wanted] = data
        return data

    async def _get(self, url: str) -> bytes:
        data = bytearray()
        async with self._session().get(url, allow_redirects=False) as response:
            if response.status != _OK:
                raise ValueError(f"status {response.status}")
            async for piece in response.content.iter_any():
                data += piece
                if len(data) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES} bytes")
        return bytes(data)

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


def _size(data: bytes) -> int:
    """Returns the size of an entry of the cache."""
    return len(data) + _ENTRY_BYTES
