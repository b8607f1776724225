"""Tests that the benchmark's client reads the streams of each API correctly, with streams rendered
by the frontend."""

from typing import Any

import aiohttp
import pytest

from bench.apis import APIS, Api, Prompt, Tokens, Tool
from schemas.events import TurnEvent
from tests.kit.events import call, finish, text
from tests.kit.frontend import FakeGateway, serving

TURN: list[TurnEvent] = [
    *text(0, "Let me look."),
    *call(1, "look", '{"at": 3}', call_id="call_1"),
    *text(2, "So."),
    finish(3),
]
TOOL = Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "integer"}}})


async def streamed(api: Api) -> tuple[FakeGateway, list[bytes]]:
    gateway = FakeGateway(lambda: [[event] for event in TURN])
    prompt = Prompt("hi", system="be brief", tools=(TOOL,))
    async with serving(gateway) as served, aiohttp.ClientSession(served.url) as http:
        body: dict[str, Any] = api.body(prompt, "acme/served-model")
        async with http.post(api.path, json=body, headers=api.headers) as response:
            assert response.status == 200, await response.text()
            whole = await response.read()
    return gateway, [event + b"\n\n" for event in whole.split(b"\n\n") if event]


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
async def test_bench_reads_streams_correctly(api: Api) -> None:
    gateway, events = await streamed(api)
    asked = gateway.turns[0].conversation
    said = [
        part.text for message in asked.messages for part in message.parts if hasattr(part, "text")
    ]
    assert "hi" in said
    assert [tool.name for tool in asked.tools] == ["look"]
    assert asked.sampling.max_tokens == 4096
    assert asked.thinking.mode == "disabled" or asked.template_kwargs == {"enable_thinking": False}
    outputs = [at for at, event in enumerate(events) if api.output in event]
    assert len(outputs) >= 4
    assert all(event.count(api.output) <= 1 for event in events)
    assert api.end in events[-1] or api.end in events[-2]
    assert api.tokens(b"".join(events)) == Tokens(656, 74, 600)
    done = api.call_done(list(enumerate(events)))
    assert done is not None
    said_before = b"".join(events[: done + 1])
    assert b"Let me" in said_before
    assert b"So." not in said_before
    assert api.call_done(list(enumerate(events[:done]))) is None
    assert api.tokens(events[0]) is None or api.tokens(events[0]) != Tokens(656, 74, 600)
