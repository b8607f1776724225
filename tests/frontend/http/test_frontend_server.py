"""Connections: their number, slow senders, and what an idle one costs."""

import asyncio
import json

import pytest

from services.frontend.http.server import client_of
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import CONVERSING
from tests.kit.every import Cases, for_rows
from tests.kit.frontend import serving
from tests.kit.raw_http import (
    CHUNKED,
    Answer,
    answer_to,
    chunk,
    connected,
    get,
    post,
    read_answer,
    upgrade,
)
from tests.kit.waiting import LIMIT_S, eventually, until

SHORT = 0.2
SIZED = "Content-Length: 100000"
HEAD = post(b"", CHUNKED, sized=False)
SLOW: dict[str, tuple[bytes, bytes]] = {
    "messages": (post(b"", SIZED, sized=False), b"x"),
    "chunked": (HEAD, chunk(b"x")),
    "expect": (post(b"", SIZED, "Expect: 100-continue", sized=False), b""),
}
"""Requests with an endless body: their beginning, and what is sent again and again."""


async def answer_to_slow(port: int, beginning: bytes, then: bytes) -> Answer:
    async with connected(port, beginning) as (reader, writer):
        answering = asyncio.create_task(read_answer(reader))
        while then and not answering.done():
            writer.write(then)
            await asyncio.wait([answering], timeout=SHORT / 20)
        return await answering


async def test_slow_body_is_a_408(cases: Cases) -> None:
    """The time is that of the whole body: a byte now and then does not prolong it."""
    async with serving(config=FrontendConfig(body_timeout_s=SHORT)) as served:
        answers = await asyncio.gather(
            *(answer_to_slow(served.port, *sent) for sent in SLOW.values())
        )
        for name, answer in zip(SLOW, answers, strict=True):
            with cases.case(name):
                assert answer.status == 408
                assert answer.message == "The request body did not arrive in time"
                assert json.loads(answer.body)["request_id"] == answer.headers["request-id"]
        await eventually(served.none_open)
    assert served.gateway.turns == []


async def is_closed_without_an_answer(port: int, beginning: bytes, then: bytes) -> bool:
    """Sends `then` again and again until the server closes the connection."""
    async with connected(port, beginning) as (reader, writer), asyncio.timeout(LIMIT_S):
        reading = asyncio.create_task(reader.read())
        while not reading.done() and not writer.is_closing():
            writer.write(then)
            await asyncio.wait([reading], timeout=SHORT / 20)
        try:
            return await reading == b""
        except ConnectionError:
            return True


async def test_connection_without_a_head_is_closed() -> None:
    """Single bytes do not prolong the time."""
    unfinished = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\n"
    heads = [(b"", b""), (b"GET /", b"x"), (unfinished, b""), (unfinished, b"x")]
    async with serving(config=FrontendConfig(head_timeout_s=SHORT)) as served:
        closed = await asyncio.gather(
            *(is_closed_without_an_answer(served.port, *sent) for sent in heads)
        )
    assert closed == [True] * len(heads)


async def test_connection_may_be_idle_after_a_request() -> None:
    async with (
        serving(config=FrontendConfig(head_timeout_s=SHORT)) as served,
        connected(served.port) as (reader, writer),
        asyncio.timeout(LIMIT_S),
    ):
        for _ in range(2):
            writer.write(get("/live"))
            assert (await read_answer(reader)).status == 200
            async with connected(served.port) as (late, _):
                assert await late.read() == b""  # by now the time is over


async def test_connections_over_the_limit_of_an_address_are_refused() -> None:
    async with serving(config=FrontendConfig(max_connections_per_address=2)) as served:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        for reader, writer in held:
            writer.write(get())
            assert (await read_answer(reader)).status == 200
        for path in (*(api.path for api in CONVERSING), "/v1/models"):
            answer = await answer_to(served.port, post(path=path))
            assert answer.status == 429, path
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
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

        await until(admitted)
        held[0][1].close()


async def test_connection_over_the_limit_may_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.frontend.http.server.REFUSED_TIMEOUT_S", SHORT)
    async with (
        serving(config=FrontendConfig(max_connections_per_address=1)) as served,
        connected(served.port) as (held, holding),
        connected(served.port) as (refused, _),
        asyncio.timeout(LIMIT_S),
    ):
        assert await refused.read() == b""
        holding.write(get())
        assert (await read_answer(held)).status == 200


@for_rows(
    [
        (("10.1.2.3", 4), "10.1.2.3"),
        (("::ffff:10.1.2.3", 4, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 4, 0, 0), "2001:db8:1:2::/64"),
        (None, ""),
    ]
)
def test_client_is_an_address_or_a_network(peername: object, client: str) -> None:
    assert client_of(peername) == client
