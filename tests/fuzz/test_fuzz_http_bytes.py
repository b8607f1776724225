"""No byte in a URL, a header or a cookie is an error of a server: each of our HTTP servers answers
below 500."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from aiohttp import web

from services.runtime.config.frontend import FrontendConfig
from services.runtime.request_headers import AllowedHosts, replace_invalid_bytes
from tests.kit.examples import chances
from tests.kit.frontend import serving
from tests.kit.waiting import LIMIT_S
from turnwire_tools.inspector.bus_follower import TurnSource
from turnwire_tools.inspector.fold import MIB, Fold
from turnwire_tools.inspector.server import InspectorServer

KEY = "a-key-of-sixteen-characters"
Open = Callable[[Path], AbstractAsyncContextManager[int]]
"""Starts a server; its port."""


@asynccontextmanager
async def frontend(directory: Path) -> AsyncIterator[int]:
    keys = directory / "keys.txt"
    keys.write_text(f"a:{hashlib.sha256(KEY.encode()).hexdigest()}\n")
    config = FrontendConfig(
        api_keys_file=str(keys), cors_origins=["http://a.example"], allowed_hosts=["a.example"]
    )
    async with serving(config=config) as served:
        yield served.port


@asynccontextmanager
async def inspector(key: str | None, hosts: list[str]) -> AsyncIterator[int]:
    fold = Fold(max_turns=10, max_bytes=MIB)
    server = InspectorServer(fold, TurnSource("the bus"), AllowedHosts(hosts), key=key)
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    replace_invalid_bytes(runner.server)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


SERVERS: dict[str, Open] = {
    "frontend with keys": frontend,
    "inspector with a key": lambda _: inspector(KEY, ["*"]),
}
PATHS = (
    *("/", "/metrics", "/live", "/health", "/none", "/page/app.js", "/v1/models", "/v1/messages"),
    *("/v1/responses", "/v1/responses/resp_1", "/api/stream", "/api/search", "/api/turns/x"),
    *("/api/turns/x/tokens", "/api/sessions/x"),
)
METHODS = (b"GET", b"GET", b"OPTIONS", b"HEAD", b"POST", b"DELETE")
HEADERS = (
    *("Host", "Authorization", "Cookie", "X-Api-Key", "Accept", "Accept-Encoding", "Content-Type"),
    *("Origin", "Referer", "Range", "If-Range", "If-None-Match", "If-Modified-Since", "Upgrade"),
    *("Expect", "Connection", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Date"),
    *("User-Agent", "X-Request-Id", "Traceparent", "Tracestate", "Sec-WebSocket-Key"),
    *("Anthropic-Version", "Access-Control-Request-Method", "Access-Control-Request-Headers"),
    *("Content-Encoding", "Content-Length", "Transfer-Encoding", "X-Session-Id"),
)
VALUES = (
    *(b"", b"x", b"\xff", b"\xff\xfe", b"\xed\xa0\x80", "ü".encode(), b"\x7f", b"\t", b'"'),
    *(b"\\", b"%ff", b"%", b"Bearer \xff", b"Bearer", b"Bearer ", b"Basic \xff", b'a="'),
    *(b"turnwire_inspect_1=\xff", b"a=b; \xff=\xff; =; ;", b"localhost:x", b"localhost:99999"),
    *(b"[::1", b"[zz]:1", b"a b", b"a@b:c@d", b":", b"//", b"a/b", b"a?b", b"\xff:1"),
    *(b"bytes=\xff", b"bytes=9-1", b"*/*;q=\xff", b"text/html;q=x", b";", b",", b"gzip;q=\xff"),
    *(b"application/json; \xff", b"charset=\xff", b"application/json;charset=none"),
    *(b"application/openmetrics-text; version=\xff", b"00-\xff-x-01", b"websocket"),
    *(b"100-continue", b"GET", b"GET, \xff", b"http://a.example", b"null", b"0" * 300),
    b"Thu, 99 Foo \xff",
)


def request(chance: Random) -> bytes:
    """A request with any of these values in up to five headers, in the path and in the query."""
    path = chance.choice(PATHS).encode()
    if chance.random() < 0.3:
        key, query = (chance.choice(VALUES).replace(b" ", b"+") for _ in range(2))
        path += b"?key=%b&q=%b" % (key, query)
    if chance.random() < 0.1:
        path += chance.choice(VALUES).replace(b" ", b"")
    names = chance.sample(HEADERS, k=chance.randint(1, 5))
    if "Host" not in names:
        names.append("Host")
    lines = [b"%b %b HTTP/1.1" % (chance.choice(METHODS), path)]
    for name in names:
        known_host = name == "Host" and chance.random() < 0.6
        value = b"localhost" if known_host else chance.choice(VALUES)
        end = chance.choice([b"", b"", b"\xff", chance.choice(VALUES)])
        lines.append(b"%b: %b%b" % (name.encode(), value, end))
    return b"\r\n".join([*lines, b"", b""])


async def status_of(port: int, request: bytes) -> int:
    """The status of the answer; 400 if the server only closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(LIMIT_S):
            line = await reader.readline()
        return int(line.split()[1]) if line else 400
    except ConnectionError:
        return 400
    finally:
        writer.close()


@pytest.mark.parametrize("name", SERVERS)
async def test_odd_bytes_in_a_request_are_the_clients_error(name: str, tmp_path: Path) -> None:
    async with SERVERS[name](tmp_path) as port:
        for chance in chances(name, 1500):
            made = request(chance)
            assert await status_of(port, made) < 500, made
