"""The client of a server: nothing that it sends holds a request for ever, or fills the memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from services.worker.engines.remote import http
from services.worker.engines.remote.http import (
    EventLines,
    HttpRefusal,
    NotListening,
    ServerHttp,
    Untrusted,
)
from tests.kit.nats import free_port
from tests.worker.fake_server import FakeServer


class Endless(FakeServer):
    """Answers without an end, to errors as to questions."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._answer), web.post("/generate", self._answer)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(status=500 if request.method == "POST" else 200)
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 1000)


@asynccontextmanager
async def client(url: str) -> AsyncIterator[ServerHttp]:
    opened = ServerHttp(url, None)
    try:
        yield opened
    finally:
        await opened.close()


async def test_answers_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 10_000)
    server = Endless()
    async with client(await server.open()) as opened:
        with pytest.raises(HttpRefusal, match="status 200: its answer has no end"):
            await opened.text("/metrics")
        with pytest.raises(HttpRefusal, match="status 500: its answer has no end"):
            await anext(opened.events("/generate", {}))
    await server.close()


async def test_nothing_listens() -> None:
    port = free_port()
    for host, reason in (
        ("127.0.0.1", "Connection refused"),
        ("nowhere.invalid", "(Name or service|No address|Temporary failure)"),
    ):
        async with client(f"http://{host}:{port}") as opened:
            with pytest.raises(NotListening, match=f"^cannot connect to {host}:{port}: {reason}"):
                await opened.text("/metrics")


async def test_server_without_tls_is_named_as_one() -> None:
    server = Endless()
    url = (await server.open()).replace("http:", "https:")
    async with client(url) as opened:
        with pytest.raises(
            Untrusted, match=r"^no TLS connection \([a-z ]+\); is it an https server\?$"
        ):
            await opened.text("/metrics")
    await server.close()


def test_event_without_an_end_is_refused() -> None:
    lines = EventLines(10)
    assert lines.feed(b"data: 1234\ndata: 12") == [b"1234"]
    assert lines.feed(b"34") == []
    with pytest.raises(HttpRefusal, match="no end"):
        lines.feed(b"5")
