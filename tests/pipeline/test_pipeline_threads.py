"""Message threads on two frontends, one of which is killed in mid-turn."""

import asyncio
from typing import Any

import aiohttp

from tests.kit.messages_client import say
from tests.kit.stack import MODEL, Child
from tests.kit.waiting import LIMIT_S

QUICK = say("Hm.\n</think>\n\nHello there.")
ENDLESS = say("Hm. [[delay 2000]][[fill 400]]")


def body(text: str, previous: str | None = None, **more: Any) -> dict[str, Any]:
    thread = {"type": "create"}
    if previous is not None:
        thread = {"type": "continue", "previous_message_id": previous}
    asked = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": text}]}
    return asked | {"thread": thread} | more


async def post(http: aiohttp.ClientSession, frontend: Child, asked: dict[str, Any]) -> Any:
    """Posts a request; returns the answer or the error."""
    async with http.post(f"{frontend.url}/v1/messages", json=asked) as response:
        return await response.json()


async def test_thread_goes_on_after_its_frontend_was_killed_in_mid_turn(
    frontends: list[Child], http: aiohttp.ClientSession
) -> None:
    doomed, survivor = frontends
    first = await post(http, doomed, body(QUICK))
    second = await post(http, survivor, body(QUICK, first["id"]))
    assert second["usage"]["input_tokens"] + second["usage"]["cache_read_input_tokens"] > 0

    stream = body(ENDLESS, second["id"], stream=True)
    async with http.post(f"{doomed.url}/v1/messages", json=stream) as response:
        await response.content.readuntil(b"content_block_delta")
        refused = await post(http, survivor, body(QUICK, second["id"]))
        assert refused["error"]["details"]["error_code"] == "thread_continue_in_flight"
        doomed.kill()

    async with asyncio.timeout(LIMIT_S):  # until the frontend counts as dead
        while True:
            third = await post(http, survivor, body(QUICK, second["id"]))
            if third["type"] == "message":
                break
            assert third["error"]["details"]["error_code"] == "thread_continue_in_flight"
            await asyncio.sleep(0.1)
    assert third["content"][-1]["text"] == "Hello there."
