"""Connections: limits of their heads and of their number, slow senders, and what an idle one
costs."""

import asyncio
import gzip
import logging
import socket
import tracemalloc
from contextlib import ExitStack

import pytest
from aiohttp import ClientSession

from services.frontend.http.server import MAX_HEADER_BYTES, MAX_URL_BYTES, client_of
from services.runtime.config import FrontendConfig
from tests.frontend.http.raw_http import (
    BODY,
    Answer,
    answer_to,
    answers_to,
    chunk,
    get,
    post,
    read_answer,
    upgrade,
)
from tests.kit.frontend import Served, serving
from tests.kit.waiting import LIMIT_S, eventually

CHUNKED = "Transfer-Encoding: chunked"
SHORT = 0.2
IDLE = 1000
KIB_PER_IDLE = 64


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (get("/" + "a" * MAX_URL_BYTES), 414, f"A URL may have at most {MAX_URL_BYTES} bytes."),
        (
            b"GET /" + b"a" * (MAX_URL_BYTES + 1),
            414,
            f"A URL may have at most {MAX_URL_BYTES} bytes.",
        ),
        (
            get("/version", "X: a" + "a" * MAX_HEADER_BYTES),
            431,
            f"A header may have at most {MAX_HEADER_BYTES} bytes.",
        ),
        (
            get("/version", "a" * MAX_HEADER_BYTES + ": x"),
            431,
            f"A header may have at most {MAX_HEADER_BYTES} bytes.",
        ),
        (
            get("/version", *(f"X{i}: x" for i in range(200))),
            431,
            "The request has too many headers.",
        ),
    ],
    ids=["url", "url without end", "header", "name", "headers"],
)
async def test_too_long_heads_are_refused(request_: bytes, status: int, message: str) -> None:
    """Also the guard of what `Connection.handle_error` reads from aiohttp's exceptions."""
    async with serving() as served:
        answer = await answer_to(served.port, request_)
        assert (answer.status, answer.message) == (status, message)
        assert answer.headers["request-id"].startswith("req_")
        (only,) = await answers_to(served.port, request_ + get())  # the connection is closed
        assert only.status == status


async def test_heads_within_the_limits_are_accepted() -> None:
    async with serving() as served:
        assert (await answer_to(served.port, get("/" + "a" * (MAX_URL_BYTES - 1)))).status == 404
        assert (
            await answer_to(served.port, get("/version", "X: " + "a" * (MAX_HEADER_BYTES - 1)))
        ).status == 200


async def test_no_key_gets_into_the_log_of_malformed_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as served:
        for damaged in ("secret\x01", "secret\r\n x", "secret\nx"):
            answer = await answer_to(served.port, get("/version", f"X-Api-Key: {damaged}"))
            assert answer.status == 400
            assert b"secret" not in answer.body
        bare = await answer_to(served.port, get("/version", "X-Api-Key secret"))
        assert bare.status == 400
    assert "malformed HTTP" in caplog.text
    assert "secret" not in caplog.text


async def refused(served: Served, data: bytes, then: bytes = b"") -> Answer:
    """Returns the answer to a request with an endless body: `then` is sent again and again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(data)

    async def trickle() -> None:
        while then:
            writer.write(then)
            await asyncio.sleep(SHORT / 20)

    trickling = asyncio.create_task(trickle())
    try:
        return await read_answer(reader)
    finally:
        trickling.cancel()
        writer.close()


@pytest.mark.parametrize(
    ("head", "then"),
    [
        (post(b"", "Content-Length: 100000", sized=False), b"x"),
        (post(b"", CHUNKED, sized=False), chunk(b"x")),
        (post(b"", CHUNKED, sized=False) + b"5;", b"x"),
        (post(b"", CHUNKED, sized=False) + chunk(BODY) + b"0\r\n", b"X: x\r\n"),
        (
            post(b"", CHUNKED, "Content-Encoding: gzip", sized=False)
            + chunk(gzip.compress(BODY)[:20]),
            b"",
        ),
        (
            post(b"", "Content-Length: 100000", "Content-Encoding: zstd", sized=False),
            gzip.compress(BODY)[:20],
        ),
        (post(b"", "Content-Length: 100", "Expect: 100-continue", sized=False), b""),
    ],
    ids=["sized", "chunked", "extension", "trailer", "gzip, chunked", "zstd, sized", "expect"],
)
async def test_slow_body_is_a_408(head: bytes, then: bytes) -> None:
    """The time is that of the whole body: a byte now and then does not prolong it."""
    async with serving(config=FrontendConfig(body_timeout_s=SHORT)) as served:
        answer = await refused(served, head, then)
        assert (answer.status, answer.message) == (408, "The request body did not arrive in time")
        await eventually(lambda: not any(served.callers.open_requests.values()))
    assert served.gateway.turns == []


async def test_time_limit_ends_with_the_body() -> None:
    """A body in many pieces that ends in time, and an answer that takes longer than the body
    may."""
    async with serving(config=FrontendConfig(body_timeout_s=LIMIT_S)) as served:
        pieces = [chunk(BODY[at : at + 7]) for at in range(0, len(BODY), 7)]
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(post(b"", CHUNKED, "Expect: 100-continue", sized=False))
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        for piece in [*pieces, b"0\r\n\r\n"]:
            writer.write(piece)
            await asyncio.sleep(0)
        assert (await read_answer(reader)).status == 200
        writer.close()


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /", b"GET / HTTP/1.1\r\nX: ", b"POST /v1/messages HTTP/1.1\r\nHost: a\r\n"],
)
async def test_single_bytes_do_not_prolong_the_head(beginning: bytes) -> None:
    async with serving(config=FrontendConfig(head_timeout_s=SHORT)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(beginning)
        async with asyncio.timeout(LIMIT_S):
            while not reader.at_eof():
                writer.write(b"x" if beginning else b"")
                with pytest.raises((TimeoutError, asyncio.IncompleteReadError, ConnectionError)):
                    await asyncio.wait_for(reader.readexactly(1), SHORT / 20)
                if writer.is_closing():
                    break
        writer.close()


@pytest.mark.slow
async def test_thousand_idle_connections_are_cheap() -> None:
    """Before the first request and after it; other clients are served meanwhile."""
    async with (
        serving(config=FrontendConfig(head_timeout_s=3600)) as served,
        ClientSession(served.url) as http,
    ):
        with ExitStack() as stack:
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for number in range(IDLE):
                idle = socket.create_connection(("127.0.0.1", served.port), LIMIT_S)
                stack.enter_context(idle)
                if number % 2:
                    idle.sendall(get("/live"))
                if not number % 50:
                    assert (await http.get("/version")).status == 200
            assert (await http.get("/version")).status == 200
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert (after - before) / IDLE < KIB_PER_IDLE * 1024


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/models"]
)
async def test_connections_over_the_limit_of_an_address_are_refused(path: str) -> None:
    async with serving(config=FrontendConfig(max_connections_per_address=2)) as served:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        for reader, writer in held:
            writer.write(get())
            assert (await read_answer(reader)).status == 200
        answer = await answer_to(served.port, post(path=path))
        assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (
            429,
            "1",
            "close",
        )
        assert answer.message == "Your address has too many connections to this server."
        assert (await answer_to(served.port, upgrade())).status == 429
        probe = await answer_to(served.port, get("/live"))
        assert (probe.status, probe.headers["connection"]) == (200, "close")
        for reader, writer in held:  # those within the limit are not harmed
            writer.write(post())
            assert (await read_answer(reader)).status == 200
        held.pop()[1].close()

        async def admitted() -> bool:
            return (await answer_to(served.port, get())).status == 200

        async with asyncio.timeout(LIMIT_S):
            while not await admitted():
                await asyncio.sleep(0.01)
        held[0][1].close()


async def test_connection_over_the_limit_may_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.frontend.http.server.REFUSED_TIMEOUT_S", SHORT)
    async with serving(config=FrontendConfig(max_connections_per_address=1)) as served:
        held, holding = await asyncio.open_connection("127.0.0.1", served.port)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
        holding.write(get())
        assert (await read_answer(held)).status == 200
        writer.close()
        holding.close()


async def test_connections_are_not_limited_by_default() -> None:
    async with serving() as served:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(300)]
        assert (await answer_to(served.port, get())).status == 200
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize(
    ("peername", "client"),
    [
        (("10.1.2.3", 4), "10.1.2.3"),
        (("::ffff:10.1.2.3", 4, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 4, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_client_is_an_address_or_a_network(peername: object, client: str) -> None:
    assert client_of(peername) == client
