"""Web search through real processes: every prompt of an answer, and of the next request, begins
with all tokens before."""

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.bus_turns import BusTurns, prefix_break
from tests.kit.messages_client import Client, body, say
from tests.kit.model_output import written_call
from tests.kit.nats import NatsServer
from tests.kit.search_provider import ProviderStub, provider
from tests.kit.stack import MODEL, Stack

pytestmark = pytest.mark.slow
ASKED = say(
    "  I search first,  \nthen I answer. \n</think>\n\n Searching  \n\n"
    + written_call("web_search", query=" the  tides"),
    "Once more.\n</think>\n\n" + written_call("web_search", query="moon"),
    "Now I see.\n</think>\n\nHigh water is at noon. ",
    "Thanks.\n</think>\n\nYes.",
)
ROOM = {"ledger_store_mb": 64}


@pytest.fixture
async def web_stack(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path: Path
) -> AsyncIterator[tuple[Stack, ProviderStub]]:
    async with provider() as stub:
        running = Stack(make_nats(), demo_model, tmp_path)
        running.start_all(parser=ROOM, preprocessor=ROOM, frontend={"web_provider": stub.url})
        try:
            yield running, stub
        finally:
            running.stop()


async def test_answers_keep_the_prefix(web_stack: tuple[Stack, ProviderStub]) -> None:
    stack, stub = web_stack
    client = Client(stack.url)
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    async with BusTurns(stack.nats.url) as bus:
        first = await client.stream(body(ASKED, tools=tools))
        messages = [
            {"role": "user", "content": ASKED},
            first.message,
            {"role": "user", "content": "Sure?"},
        ]
        await client.stream(body("", tools=tools, messages=messages))
        await check_prefix(bus, 4)
    assert first.kinds == [
        *("thinking", "text", "server_tool_use", "web_search_tool_result"),
        *("thinking", "server_tool_use", "web_search_tool_result", "thinking", "text"),
    ]
    assert [call["query"] for call in stub.calls] == ["the  tides", "moon"]
    assert first.usage["server_tool_use"]["web_search_requests"] == 2
    async with BusTurns(stack.nats.url) as bus:
        request = {"model": MODEL, "tools": [{"type": "web_search"}]}
        _, answer = await client.post("/v1/responses", {**request, "input": "\n\n" + ASKED})
        again = {**request, "previous_response_id": answer["id"], "input": "Sure?"}
        await client.post("/v1/responses", again)
        await check_prefix(bus, 4)
    await client.http.close()


async def check_prefix(bus: BusTurns, turns: int) -> None:
    assert len(await bus.begun(turns)) == turns
    decoded = [await bus.ended(turn) for turn in [*bus.turns]]
    assert [prefix_break(*pair) for pair in pairwise(decoded)] == [None] * (turns - 1)
