"""A provider of web search and fetch on a real port, which answers with written pages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

PAGES = [
    {
        "url": "https://example.org/tides",
        "title": "Tides",
        "text": "High water is at noon.",
        "age": "1 day ago",
    },
    {"url": "https://docs.example.com/moon", "title": "Moon", "text": "The moon is full."},
]


class ProviderStub:
    """`answer` and `status` are what it returns; `hold`, if set, is what it waits for."""

    def __init__(self) -> None:
        self.url = ""
        self.calls: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.cookies: list[str] = []
        """The names of cookies that calls had."""
        self.answer: dict[str, Any] | None = None
        self.status = 200
        self.hold: asyncio.Event | None = None
        self.called = asyncio.Event()
        self.dropped = asyncio.Event()
        """A call was given up."""

    async def handle(self, request: web.Request) -> web.Response:
        call = await request.json()
        self.calls.append(call)
        self.keys.append(request.headers.get("authorization"))
        self.cookies += request.cookies
        self.called.set()
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.dropped.set()
                raise
        answer = self.answer
        if answer is None:
            found = (
                PAGES
                if call["tool"] == "web_search"
                else [page for page in PAGES if page["url"] == call["url"]]
            )
            answer = {"results": found}
        return web.json_response(
            answer, status=self.status, headers={"set-cookie": "session=one; Path=/"}
        )


@asynccontextmanager
async def provider() -> AsyncIterator[ProviderStub]:
    stub = ProviderStub()
    app = web.Application()
    app.router.add_post("/", stub.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield stub
    finally:
        await runner.cleanup()
