"""Tests how `/v1/responses` accepts requests: large requests, missing models, refusals of the
pipeline."""

import threading
from typing import Any

import pytest
from aiohttp import ClientSession

from services.frontend.apis.responses.dialect import ConvertedRequest
from tests.frontend.responses.responses_client import Client
from tests.kit.frontend import MODEL, Served


async def test_large_request_and_long_chain_are_converted_in_a_thread(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with 100,000 items does not delay other streams."""
    on_loop: list[bool] = []
    convert = served.responses.dialect.convert

    def watched(*args: Any, **options: Any) -> ConvertedRequest:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return convert(*args, **options)

    monkeypatch.setattr(served.responses.dialect, "convert", watched)
    first = await client.create()
    long = await client.create(input=[{"role": "user", "content": "x" * 100}] * 6000)
    last = await client.create(previous_response_id=long["id"])
    assert on_loop == [True, False, False]
    listed = await client.get(last["id"], "/input_items?limit=2")
    assert [item["id"] for item in listed["data"]] == [
        f"msg_{last['id'][5:]}i000",
        long["output"][-1]["id"],
    ]
    listed = await client.get(long["id"], "/input_items?limit=1")
    assert (listed["data"][0]["id"], listed["has_more"]) == (f"msg_{long['id'][5:]}i5999", True)
    await client.ask(
        "POST", "/input_tokens", json={"model": MODEL, "previous_response_id": long["id"]}
    )
    refused = await client.refuse(input=[{"role": "user", "content": "x" * 600_000}, 1])
    assert refused["param"] == "input[1]"
    assert on_loop == [True, False, False, False]
    assert first["status"] == long["status"] == last["status"] == "completed"


async def test_missing_name_is_replaced_by_the_served_model(
    served: Served, client: Client, http: ClientSession
) -> None:
    served.gateway.any_model = True
    async with http.ws_connect(client.url) as ws:
        await ws.send_json({"type": "response.create", "input": "hi"})
        made = [
            await client.ask("POST", json={"input": "hi", "background": background})
            for background in (False, True)
        ]
        assert [
            response["model"] for response in (*made, (await ws.receive_json())["response"])
        ] == [MODEL] * 3
