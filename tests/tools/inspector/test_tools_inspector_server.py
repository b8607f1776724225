"""The inspector's server: what it returns, to whom, and how much at once."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.test_utils import TestClient, TestServer

from schemas.conversation import Text
from services.runtime.request_headers import AllowedHosts
from tests.kit.waiting import LIMIT_S
from tests.tools.inspector.by_hand import Bus, asked, user
from turnwire_tools.clients.shared import SseParser
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.server import PAGE, ROWS_PER_TICK, InspectorServer

KEY = "a-key-of-sixteen-characters"


@asynccontextmanager
async def serving(fold: Fold, key: str | None = None) -> AsyncIterator[TestClient[Any, Any]]:
    server = InspectorServer(fold, "the bus", AllowedHosts([]), key=key, vocabulary=None)
    async with TestClient(TestServer(server.app())) as client:
        yield client


async def test_every_answer_has_a_strict_policy_and_the_page_loads_nothing_else(bus: Bus) -> None:
    bus.turn(asked(user("Q")), range(9), [1], Text("<script>alert(1)</script>"))
    async with serving(bus.fold) as client:
        for path in ("/", "/page/app.js", "/api/turns/turn0001", "/api/turns/none", "/none"):
            response = await client.get(path)
            policy = response.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'" in policy, path
            assert response.headers["x-content-type-options"] == "nosniff", path
        found = await (await client.get("/api/turns/turn0001")).json()
        assert found["blocks"][0]["text"] == "<script>alert(1)</script>"
        assert (await client.get("/page/..%2fserver.py")).status == 404
    for file in PAGE.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, file
        assert "https:" not in text, file
        assert "innerHTML" not in text, file


async def test_turns_sessions_tokens_and_searches_are_served(bus: Bus) -> None:
    bus.turn(asked(user("Q")), range(9), [1, 2], Text("x"))
    async with serving(bus.fold) as client:
        tokens = await (await client.get("/api/turns/turn0001/tokens")).json()
        assert tokens == {"ids": [1, 2], "texts": [], "blocks": []}
        session = await (await client.get("/api/sessions/turn0001")).json()
        assert session["turns"][0]["output"] == 3
        rows = await (await client.get("/api/search?q=req_turn0001")).json()
        assert [row["id"] for row in rows] == ["turn0001"]


async def test_request_without_the_key_is_refused(bus: Bus) -> None:
    async with serving(bus.fold, KEY) as client:
        for path in ("/", "/?key=wrong", "/api/stream", f"/api/stream?key={KEY}", "/page/app.js"):
            assert (await client.get(path)).status == 401, path
        response = await client.get("/", params={"key": KEY}, allow_redirects=False)
        assert (response.status, response.headers["location"]) == (303, "/")
        cookie = response.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        name, value = cookie.partition(";")[0].split("=")
        for headers in ({"cookie": f"{name}={value}"}, {"authorization": f"Bearer {KEY}"}):
            assert (await client.get("/", headers=headers)).status == 200, headers


async def test_a_page_under_a_name_of_its_own_is_refused(fold: Fold) -> None:
    """DNS rebinding."""
    async with serving(fold) as client:
        response = await client.get("/api/search?q=abcd", headers={"host": "evil.example:8090"})
        assert response.status == 403
        assert (await client.get("/", headers={"host": "localhost:8090"})).status == 200


async def rows_until(
    response: aiohttp.ClientResponse, enough: Callable[[list[Any]], bool]
) -> list[list[Any]]:
    """The batches of a stream, until there are enough."""
    parser, batches = SseParser(), list[list[Any]]()
    async for chunk in response.content.iter_any():
        for name, data in parser.feed(chunk):
            if name == "rows":
                batches.append(data)
        if enough([row for batch in batches for row in batch]):
            return batches
    raise AssertionError("the stream ended")


async def test_a_stream_has_all_turns_in_bounded_batches_and_then_changes(bus: Bus) -> None:
    count = 2 * ROWS_PER_TICK + 10
    for number in range(count):
        bus.turn(asked(user(str(number)), session=None), range(9), [1], Text("x"))
    async with serving(bus.fold) as client:
        response = await client.get("/api/stream", timeout=aiohttp.ClientTimeout(LIMIT_S))
        batches = await rows_until(response, lambda rows: len(rows) >= count)
        assert max(map(len, batches)) == ROWS_PER_TICK
        names = [row["id"] for batch in batches for row in batch]
        assert names == list(reversed(bus.fold.turns))
        new = bus.begin(asked(user("new"), session=None), range(9))
        (batch,) = [rows for rows in await rows_until(response, bool) if rows]
        assert [(row["id"], row["state"]) for row in batch] == [(new, "placed")]
