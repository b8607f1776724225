"""Images by URL, from a server that stands for the hosts of the internet."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import structlog
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec.structs import replace

from schemas.conversation import Media
from services.frontend import app
from services.frontend.media import image_fetch
from services.frontend.media.image_fetch import ImageFetcher, PublicResolver
from services.frontend.turns.notice import make_notice
from services.images.image_data import MAX_BYTES
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.media.media_apis import (
    HELLO,
    SEEN,
    Store,
    link_part,
    media,
    result_body,
    said,
    seeing,
)
from tests.kit.bodies import CHAT, CONVERSING, user
from tests.kit.certificates import Authority
from tests.kit.clock import LoopClock
from tests.kit.frontend import Served, serving
from tests.kit.pdf_files import PNG
from tests.kit.waiting import eventually

HOSTS = ["images.example", "*.example.org"]
URL = "https://images.example/shot.png?signature=secret"


class Names(AbstractResolver):
    """Resolves every name to one address and port."""

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = ResolveResult(
            hostname=host, host=self._address, port=self._port, family=family, proto=0, flags=0
        )
        return [found]

    async def close(self) -> None:
        """Nothing is open."""


class Internet:
    """All hosts."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: Counter[str] = Counter()
        self.silent = asyncio.Event()
        self.cookies: list[str] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests[request.path] += 1
        self.cookies += request.cookies
        match request.path:
            case "/shot.png":
                return web.Response(body=PNG, content_type="text/plain")
            case "/moved":
                return web.Response(status=302, headers={"location": URL})
            case "/page":
                return web.Response(text="<html>")
            case "/large":
                return web.Response(body=PNG + bytes(MAX_BYTES))
            case "/small":
                return web.Response(body=b"x", headers={"set-cookie": "access=all; Path=/"})
            case "/silent":
                await self.silent.wait()
        return web.Response(status=404)

    def connector(self) -> aiohttp.BaseConnector:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return aiohttp.TCPConnector(resolver=Names("127.0.0.1", self.port), ssl=context)

    def fetcher(self) -> ImageFetcher:
        return ImageFetcher(HOSTS, structlog.get_logger(), self.connector)


@pytest.fixture
async def internet(tmp_path: Path) -> AsyncIterator[Internet]:
    internet = Internet()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*Authority("one").write(tmp_path, "server"))
    runner = web.ServerRunner(web.Server(internet.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    internet.port = runner.addresses[0][1]
    yield internet
    internet.silent.set()
    await runner.cleanup()


@pytest.fixture
async def served(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A frontend that fetches from `internet`."""
    monkeypatch.setattr(app, "public_connector", internet.connector)
    config = FrontendConfig(image_url_hosts=HOSTS)
    async with serving(seeing(), config, put_image=Store().put) as served:
        yield served


async def test_image_of_an_allowed_host_is_fetched_once(internet: Internet, served: Served) -> None:
    for api in CONVERSING:
        link = link_part(api, URL)
        for body in (api.body(user(link)), result_body(api, link)):
            assert await said(served, api, body) == HELLO, (api.name, body)
    seen = replace(SEEN, url=URL, size_bytes=None)
    assert [media(asked) for asked in served.gateway.conversations] == [[seen]] * 6
    assert internet.requests == {"/shot.png": 1}


NOT_FETCHED = (
    "http://images.example/shot.png",
    "https://example.org/shot.png",
    "https://images.example@other.example/shot.png",
    "https://images.example.other.example/shot.png",
    "https://127.0.0.1/shot.png",
    "file:///etc/passwd",
    "https://images.example/" + "x" * 4096,
)


async def test_other_answers_and_urls_become_a_note(internet: Internet, served: Served) -> None:
    paths = ("/moved", "/page", "/large", "/missing")
    for url in (*(f"https://images.example{path}" for path in paths), *NOT_FETCHED):
        answer = await said(served, CHAT, CHAT.body(user(link_part(CHAT, url))))
        assert answer == HELLO + make_notice({"image"}), url
        assert media(served.gateway.conversations[-1]) == [Media("image", url=url)]
    assert "images.example/" not in str(served.lines)
    assert internet.requests == dict.fromkeys(paths, 1)


async def test_malformed_url_is_refused(internet: Internet, served: Served) -> None:
    """In each API's own shape, and without a word of it in the log."""
    for url in ("https://a\0b/secret.png", "https://[::1/secret.png", "https://a\nb/secret"):
        for api in CONVERSING:
            reply = await served.post(api.path, api.body(user(link_part(api, url))))
            assert reply.error[:2] == (400, "invalid_request_error"), (api.path, url)
    assert "secret" not in str(served.lines)
    assert not internet.requests


async def test_silent_host_is_given_up(internet: Internet, loop_clock: LoopClock) -> None:
    fetcher = internet.fetcher()
    silent = "https://a.b.example.org/silent"
    asks = [asyncio.create_task(fetcher.fetch(silent, None)) for _ in range(20)]
    await asyncio.sleep(0)
    asks.pop().cancel()
    await eventually(lambda: internet.requests == {"/silent": 1})
    loop_clock.passed += image_fetch.TIMEOUT_S
    assert await asyncio.gather(*asks) == [None] * 19
    assert await fetcher.fetch(silent, None) is None
    assert internet.requests == {"/silent": 1}, "a failure is remembered"
    other = asyncio.create_task(fetcher.fetch(silent, "another tenant"))
    await eventually(lambda: internet.requests == {"/silent": 2})
    loop_clock.passed += image_fetch.TIMEOUT_S
    assert await other is None
    assert await fetcher.fetch(URL, None) == PNG
    async for _ in fetcher.context(None):
        pass


async def test_small_answers_fill_the_cache_too(
    internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_fetch, "CACHE_BYTES", 1024)
    fetcher = internet.fetcher()
    for number in (*range(9), 0):
        assert await fetcher.fetch(f"https://images.example/small?{number}", None) == b"x"
    assert internet.requests == {"/small": 10}
    assert internet.cookies == [], "what one tenant's URL sets is not sent with another's"
    async for _ in fetcher.context(None):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "fd00::1", "::ffff:10.0.0.1"])
async def test_name_of_a_private_address_is_not_resolved(address: str) -> None:
    with pytest.raises(OSError, match="private"):
        await PublicResolver(Names(address, 443)).resolve("images.example")
    assert await PublicResolver(Names("93.184.216.34", 443)).resolve("images.example")
