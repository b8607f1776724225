"""Calls of hosted tools: what the provider gets, and its errors."""

import asyncio
from pathlib import Path

from schemas.conversation import Result, Text
from services.runtime.config.frontend import FrontendConfig
from tests.frontend.hosted.hosted_frontend import (
    FETCH,
    FIRST,
    IDS,
    LAST,
    SEARCH,
    body,
    counted,
    fetch,
    hosted,
    last,
    message,
    search,
)
from tests.kit.events import call, finish
from tests.kit.frontend import in_turn, serving
from tests.kit.search_provider import PAGES, provider
from tests.kit.waiting import LIMIT_S, eventually


async def test_errors_of_calls_are_results() -> None:
    calls = [*search(0), *search(1, id=IDS[1]), *search(2, "x" * 1001, IDS[2])]
    calls += call(3, "web_search", "{}", call_id=IDS[3])
    gateway = in_turn([*calls, finish(4)], LAST)
    async with hosted(gateway) as (served, stub):
        stub.status, stub.answer = 429, {}
        answer = await message(served, body({**SEARCH, "max_uses": 3}))
        assert counted(served) == {
            "too_many_requests": 2,
            "query_too_long": 1,
            "max_uses_exceeded": 1,
            "timed": 2,
        }
    results = [block["content"] for block in answer["content"] if "tool_use_id" in block]
    assert {result["type"] for result in results} == {"web_search_tool_result_error"}
    codes = [result["error_code"] for result in results]
    assert codes == ["too_many_requests"] * 2 + ["query_too_long", "max_uses_exceeded"]
    assert answer["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}
    assert last(gateway)[-1].parts[0] == Result(
        IDS[0], [Text("Error: too_many_requests")], True, "web_search"
    )


async def test_answer_outside_the_contract_or_none_is_unavailable() -> None:
    async with hosted(in_turn(*[FIRST, LAST] * 4)) as (served, stub):
        for stub.answer, stub.status in (
            ({"error": "unavailable"}, 200),
            ({"results": 3}, 200),
            ({}, 500),
            ({"results": [{"title": "no url"}]}, 200),
        ):
            shown = await message(served, body(SEARCH))
            assert shown["content"][3]["content"]["error_code"] == "unavailable", stub.answer
    async with hosted(in_turn(FIRST, LAST), web_timeout_s=0.3) as (served, stub):
        stub.hold = asyncio.Event()
        shown = await message(served, body(SEARCH))
        await asyncio.wait_for(stub.dropped.wait(), LIMIT_S)
        assert shown["content"][3]["content"]["error_code"] == "unavailable", "in time"


async def test_client_that_hangs_up_ends_the_call() -> None:
    gateway = in_turn(FIRST, LAST)
    async with hosted(gateway) as (served, stub):
        stub.hold = asyncio.Event()
        asked = body(SEARCH, stream=True)
        async with served.http.post("/v1/messages", json=asked) as response:
            await response.content.readuntil(b"server_tool_use")
            await asyncio.wait_for(stub.called.wait(), LIMIT_S)
        await asyncio.wait_for(stub.dropped.wait(), LIMIT_S)
        await eventually(lambda: counted(served) == {"cancelled": 1, "timed": 1})
    (turn,) = gateway.turns
    assert turn.cancelled == [], "it had ended"


async def test_provider_gets_key_domains_and_place(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    async with hosted(in_turn(FIRST, LAST), web_provider_key_file=str(file)) as (served, stub):
        location = {"type": "approximate", "city": "Oslo"}
        tool = {**SEARCH, "allowed_domains": ["example.com"], "user_location": location}
        answer = await message(served, body(tool))
        assert counted(served) == {"ok": 1, "timed": 1}
    assert [page["title"] for page in answer["content"][3]["content"]] == ["Moon"]
    assert stub.calls[0]["allowed_domains"] == ["example.com"]
    assert stub.calls[0]["user_location"] == location
    assert stub.keys == ["Bearer secret"]


async def test_provider_gets_no_cookie_of_an_earlier_call() -> None:
    async with provider() as stub:
        # Clients keep no cookies of addresses.
        url = stub.url.replace("127.0.0.1", "localhost")
        gateway = in_turn(FIRST, LAST, FIRST, LAST)
        async with serving(gateway, FrontendConfig(web_provider=url)) as served:
            for _ in range(2):
                await message(served, body(SEARCH))
    assert (len(stub.calls), stub.cookies) == (2, [])


async def test_web_fetch_reads_pages_of_the_conversation() -> None:
    page = PAGES[0]["url"]
    calls = [
        *fetch(0, page),
        *fetch(1, "https://other.example/?leak=1", IDS[1]),
        *fetch(2, "http://[::1]/", IDS[2]),
    ]
    gateway = in_turn([*calls, finish(3)], LAST)
    async with hosted(gateway) as (served, stub):
        answer = await message(served, body({**FETCH, "max_content_tokens": 12}))
    results = [block for block in answer["content"] if block["type"] == "web_fetch_tool_result"]
    document = results[0]["content"]
    assert (document["url"], document["content"]["title"]) == (page, "Tides")
    # 48 characters with URL and title
    assert document["content"]["source"]["data"] == "High water is at n"
    codes = [result["content"]["error_code"] for result in results[1:]]
    assert codes == ["url_not_in_prior_context", "url_not_allowed"]
    assert stub.calls == [{"tool": "web_fetch", "url": page}]
    assert answer["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 1}
