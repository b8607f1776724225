"""The inspector's server: what it returns, to whom, and how much at once."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.test_utils import TestClient, TestServer

from schemas.conversation import Call, Client, Media, Message, Reasoning, Text, ToolSpec
from schemas.errors import MEDIA_MISSING, Overloaded, Unavailable
from schemas.events import Failed
from services.runtime.request_headers import AllowedHosts
from tests.kit.waiting import LIMIT_S
from tests.tools.inspector.by_hand import Bus, answer, asked, result, user
from turnwire_tools.clients.shared import SseParser
from turnwire_tools.inspector.bus_follower import TurnSource
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.images import InspectorImages
from turnwire_tools.inspector.server import MAX_HITS, PAGE, ROWS_PER_TICK, InspectorServer

KEY = "a-key-of-sixteen-characters"


@asynccontextmanager
async def serving(
    fold: Fold, key: str | None = None, images: InspectorImages | None = None
) -> AsyncIterator[TestClient[Any, Any]]:
    server = InspectorServer(fold, TurnSource("the bus"), AllowedHosts([]), key=key, images=images)
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
        found = await (await client.get("/api/search?q=req_turn0001")).json()
        assert [one["row"]["id"] for one in found["found"]] == ["turn0001"]
        assert not found["more"]
        (section,) = await (await client.get("/api/conversation?turns=turn0001,none")).json()
        assert [part["text"] for part in section["parts"]] == ["Q"]
        overview = await (await client.get("/api/overview?minutes=0")).json()
        assert overview["overview"]["observed"] == bus.fold.turns["turn0001"].time
        assert list(overview["rows"]) == overview["overview"]["slowest"] == ["turn0001"]


async def test_a_search_has_the_newest_hits_and_whether_there_are_others(bus: Bus) -> None:
    for number in range(MAX_HITS + 1):
        name = bus.begin(asked(user(f"needle {number}")), range(9))
    async with serving(bus.fold) as client:
        found = await (await client.get("/api/search?q=needle")).json()
    assert (len(found["found"]), found["more"]) == (MAX_HITS, True)
    assert found["found"][0]["row"]["id"] == name


async def test_all_of_a_long_text_is_served_on_demand(bus: Bus) -> None:
    long = "word " * 20_000
    bus.turn(asked(user(long)), range(9), [1], Text(long))
    async with serving(bus.fold) as client:
        for of, text in (("parts", long), ("answer", long), ("system", "You are an agent.")):
            path = f"/api/turns/turn0001/text?of={of}&at=0"
            assert (await (await client.get(path)).json())["text"] == text
        for query in ("of=parts&at=1", "of=none&at=0", "of=answer&at=x1"):
            status = (await client.get(f"/api/turns/turn0001/text?{query}")).status
            assert status == (200 if query.endswith("x1") else 404), query


async def test_a_number_of_too_many_digits_is_refused(bus: Bus) -> None:
    bus.turn(asked(user("Q")), range(9), [1], Text("x"))
    async with serving(bus.fold) as client:
        for path in ("overview?minutes=", "turns/turn0001/text?of=parts&at="):
            assert (await client.get(f"/api/{path}{'9' * 5000}")).status == 400, path
        assert (await client.get(f"/api/overview?minutes={'9' * 12}")).status == 200


async def test_without_texts_no_answer_has_words() -> None:
    """Every path that the page reads, with a word in each kind of text."""
    fold = Fold(texts=False)
    bus = Bus(fold)
    call = Call("toolu_1", "Bash", '{"command": "wordy"}')
    tools = [ToolSpec("Bash", "wordy", {"properties": {"command": {"const": "wordy"}}})]
    media = Media("image", "image/png", 10, url="http://wordy/", title="wordy", hash="aa" * 20)
    question = Message("user", [Text("wordy"), media])
    system = [Text("wordy 2026-01-01")]
    bus.turn(
        asked(question, tools=tools, system=system),
        range(99),
        [1],
        Reasoning("wordy"),
        Text("wordy"),
        call,
    )
    history = (question, answer(Reasoning("wordy"), Text("wordy"), call), result(call, "wordy"))
    changed = asked(*history, tools=tools, system=[Text("wordy 2026-01-02")])
    bus.turn(changed, range(50, 250), [2], Text("wordy"))
    title = Client("s", "claude-cli/2.1", kind="background")
    bus.turn(asked(user("wordy"), tools=[], client=title), range(9), [3], Text("wordy"))
    failed = bus.begin(asked(user("wordy"), session="f"), range(9))
    bus.events(failed, Failed(Overloaded("wordy").info))

    names = ",".join(fold.turns)
    paths = ["overview?minutes=0", "search?q=wordy", "search?q=Bash", f"conversation?turns={names}"]
    paths += [f"turns/{name}" for name in fold.turns]
    paths += [f"sessions/{name}" for name in fold.turns]
    async with serving(fold) as client:
        for path in paths:
            response = await client.get(f"/api/{path}")
            assert response.status == 200, path
            assert "wordy" not in await response.text(), path
        assert await (await client.get("/api/search?q=wordy")).json() == {
            "found": [],
            "more": False,
        }
        for path in ("tokens", "text?of=parts&at=0"):
            assert (await client.get(f"/api/turns/turn0001/{path}")).status in (403, 404)
        stream = await client.get("/api/stream", timeout=aiohttp.ClientTimeout(LIMIT_S))
        (rows,) = await rows_until(stream, bool)
        assert len(rows) == len(fold.turns)
        assert "wordy" not in str(rows)


class Bucket:
    """A bucket of images that are there, missing, or may not be read."""

    def __init__(self, images: dict[str, bytes]) -> None:
        self._images = images
        self.requests = 0

    async def get(self, image: str) -> bytes:
        self.requests += 1
        if image == "forbidden":
            raise Unavailable("no answer")
        if image not in self._images:
            raise Unavailable("gone", code=MEDIA_MISSING)
        return self._images[image]


async def test_images_are_served_as_pixels_or_not_at_all(fold: Fold) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"x" * 50
    bucket = Bucket({"aa": png, "bb": b"<svg onload=alert(1)>"})
    images = InspectorImages()
    async with serving(fold, images=images) as client:
        assert (await client.get("/api/images/aa")).status == 404  # a recording has no bucket
        images.connect(bucket)  # type: ignore[arg-type]
        for _ in range(2):
            response = await client.get("/api/images/aa")
            assert (response.status, response.content_type) == (200, "image/png")
            assert await response.read() == png
        assert bucket.requests == 1
        for name in ("bb", "cc", "forbidden"):
            assert (await client.get(f"/api/images/{name}")).status == 404
        assert (await client.get("/api/images/dd")).status == 404
        assert bucket.requests == 4  # none for a while after one that was refused


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
