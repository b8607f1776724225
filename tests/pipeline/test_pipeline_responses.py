"""Stored and background Responses on two frontends, one of which is killed or drained."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.kit.messages_client import say
from tests.kit.stack import MODEL, Child, Stack
from tests.kit.waiting import LIMIT_S, eventually

QUICK = say("Hm.\n</think>\n\nHello there.")
ENDLESS = say("Hm. [[delay 2000]][[fill 400]]")
LONG = say("Hm.\n</think>\n\nIt begins.\n\n[[delay 20]][[fill 400]]")


async def make(http: aiohttp.ClientSession, frontend: Child, text: str, **more: Any) -> Any:
    """Posts a request; returns the response."""
    body = {"model": MODEL, "input": text, **more}
    async with http.post(f"{frontend.url}/v1/responses", json=body) as response:
        document = await response.json()
        assert response.status == 200, document
        return document


async def until(
    http: aiohttp.ClientSession, frontend: Child, response: dict[str, Any], status: str
) -> Any:
    """Waits until a frontend returns the response with this status."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            async with http.get(f"{frontend.url}/v1/responses/{response['id']}") as answer:
                if answer.status == 200 and (found := await answer.json())["status"] == status:
                    return found
            await asyncio.sleep(0.02)


async def test_any_frontend_continues_and_cancels_any_response(
    frontends: list[Child], http: aiohttp.ClientSession, own_stack: Stack
) -> None:
    previous: dict[str, str] = {}
    for number in range(4):
        made = await make(http, frontends[number % 2], QUICK, **previous)
        assert made["output"][-1]["content"][0]["text"] == "Hello there."
        previous = {"previous_response_id": made["id"]}
    one, other = frontends
    body = {"model": MODEL, "input": ENDLESS, "background": True, "stream": True}
    id = ""
    async with http.post(f"{one.url}/v1/responses", json=body) as stream:
        async for line in stream.content:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                id = event["response"]["id"] if "response" in event else id
                if event["type"].endswith(".delta"):  # the worker has the turn
                    break
        async with http.post(f"{other.url}/v1/responses/{id}/cancel") as response:
            assert (await response.json())["status"] == "cancelled"
    turn = id.rpartition("_")[2]
    logs = [worker.log for worker in own_stack.of("worker")]
    await eventually(
        lambda: any("worker.cancelled" in log and turn in log for log in map(Path.read_text, logs))
    )


async def test_background_responses_of_a_killed_frontend_fail(
    frontends: list[Child], http: aiohttp.ClientSession
) -> None:
    doomed, survivor = frontends
    running = await make(http, doomed, LONG, background=True)
    kept = await make(http, doomed, QUICK)
    await until(http, survivor, running, "in_progress")
    await until(http, survivor, kept, "completed")  # it is stored after its answer
    doomed.kill()
    failed = await until(http, survivor, running, "failed")
    assert failed["error"]["message"] == "The server that ran this response is gone."
    await until(http, survivor, kept, "completed")
