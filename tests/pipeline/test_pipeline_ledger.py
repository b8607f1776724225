"""The ledger through real processes: the next prompt begins with the tokens that the engine has
cached."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.messages_client import Answer, Client, Event, body, call, events, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import until

COUNTS = {"worker": 1, "parser": 2, "preprocessor": 2}
ROOM = {"ledger_store_mb": 64}
"""Less than the test servers' limit."""
BLOCK = 16
"""Tokens of a block of the script engine's prefix cache."""
NONCANONICAL = (
    "  I look first,  \nthen I act. \n</think>\n\n Looking  \n\n\n"
    + call("ls  -l", timeout_s="2.50")
    + "\n"
    + call("date")
    + "\n"
)
"""An output that no template renders: blanks at the ends, blank lines, 2.50."""
REST = ["\n</think>\n\nOne more.\n" + call("pwd"), "So that is it.\n</think>\n\nDone. "]

pytestmark = pytest.mark.slow  # a stack of its own


@pytest.fixture(scope="module")
def two_of_each(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    running = Stack(make_nats(), demo_model, tmp_path_factory.mktemp("ledger"))
    try:
        yield running.start_all(COUNTS, parser=ROOM, preprocessor=ROOM)
    finally:
        running.stop()


@pytest.fixture
async def client(two_of_each: Stack) -> AsyncIterator[Client]:
    connected = Client(two_of_each.url)
    yield connected
    await connected.http.close()


def prompt_of(usage: dict[str, Any]) -> int:
    return int(
        usage["input_tokens"]
        + usage["cache_read_input_tokens"]
        + usage["cache_creation_input_tokens"]
    )


class Agent:
    """A Messages client with its history and token counts."""

    def __init__(
        self, client: Client, *outputs: str, thinking: bool = True, pairs: bool = False
    ) -> None:
        self.client = client
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": say(*outputs)}]
        self.known = 0
        self.thinking = thinking
        """Whether it sends reasoning back."""
        self.pairs = pairs
        """Whether it sends each call back with its result."""

    async def turn(self) -> Answer:
        request = body("", messages=self.messages)
        _, counted = await self.client.post(
            "/v1/messages/count_tokens", {k: request[k] for k in ("model", "messages", "tools")}
        )
        answer = await self.client.stream(request)
        usage = answer.usage
        assert prompt_of(usage) == counted["input_tokens"]
        assert usage["cache_read_input_tokens"] >= self.known - self.known % BLOCK
        # The end token is sampled and never computed.
        self.known = prompt_of(usage) + usage["output_tokens"] - 1
        self._append(answer)
        return answer

    def _append(self, answer: Answer) -> None:
        content = [
            {k: v for k, v in block.items() if not k.startswith("_")}
            for block in answer.blocks
            if self.thinking or block["type"] != "thinking"
        ]
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": f"result of {block['input']}",
            }
            for block in content
            if block["type"] == "tool_use"
        ]
        while self.pairs and len(results) > 1:
            end = next(at for at, block in enumerate(content, 1) if block["type"] == "tool_use")
            self.messages.append({"role": "assistant", "content": content[:end]})
            self.messages.append({"role": "user", "content": [results.pop(0)]})
            content = content[end:]
        self.messages += [{"role": "assistant", "content": content}]
        self.messages += [{"role": "user", "content": results or "And then?"}]


@pytest.mark.parametrize(
    "thinking", [True, False], ids=["reasoning sent back", "reasoning dropped"]
)
async def test_a_turn_comes_back_as_its_own_tokens(client: Client, thinking: bool) -> None:
    agent = Agent(client, NONCANONICAL, *REST, thinking=thinking)
    first = await agent.turn()
    assert first.kinds == ["thinking", "text", "tool_use", "tool_use"]
    await agent.turn()
    last = await agent.turn()
    assert agent.known > 300
    assert last.usage["cache_read_input_tokens"] > 250


async def test_a_turn_comes_back_in_pairs_as_its_own_tokens(client: Client) -> None:
    agent = Agent(client, "\n \n" + NONCANONICAL, *REST, pairs=True)
    first = await agent.turn()
    assert first.kinds == ["thinking", "text", "tool_use", "tool_use"]
    await agent.turn()
    last = await agent.turn()
    assert last.usage["cache_read_input_tokens"] > 250


async def test_a_turn_keeps_its_tokens_up_to_its_last_whole_call_after_a_hang_up(
    client: Client,
) -> None:
    output = (
        " I look. \n</think>\n\n" + call("ls  -l", timeout_s="2.50") + "\n\n\n" + "so " * 50_000
    )
    request = body(say("\t" + output, "Well.\n</think>\n\nDone."))
    received: list[Event] = []
    async with client.http.post(f"{client.url}/v1/messages", json=request) as response:
        async for event in events(response):
            received.append(event)
            if event.name == "content_block_stop" and event.data["index"] == 1:
                break
        response.close()
    ends = [
        Event(
            "message_delta",
            {
                "type": "message_delta",
                "delta": {"stop_reason": None, "stop_sequence": None},
                "usage": {},
            },
            0,
        )
    ]
    answer = Answer([*received, *ends, Event("message_stop", {"type": "message_stop"}, 0)])
    assert answer.kinds == ["thinking", "tool_use"]

    thought, called = answer.message["content"]

    async def count(signature: str, call_id: str) -> int:
        turn = {
            "role": "assistant",
            "content": [{**thought, "signature": signature}, {**called, "id": call_id}],
        }
        result = {"type": "tool_result", "tool_use_id": call_id, "content": "Stopped."}
        messages = [*request["messages"], turn, {"role": "user", "content": [result]}]
        counted = {"model": request["model"], "tools": request["tools"], "messages": messages}
        return int((await client.post("/v1/messages/count_tokens", counted))[1]["input_tokens"])

    async def keeps_its_tokens() -> bool:
        return await count(thought["signature"], called["id"]) != await count("foreign", "foreign")

    await until(keeps_its_tokens)


async def test_a_session_survives_the_replacement_of_every_process(
    two_of_each: Stack, client: Client
) -> None:
    agent = Agent(client, "\n" + NONCANONICAL, *REST)
    await agent.turn()
    for stage in ("preprocessor", "parser"):
        old = two_of_each.of(stage)
        for _ in old:
            two_of_each.start(stage, **ROOM)
        for child in old:
            child.terminate()
        for child in old:
            child.wait()
    two_of_each.restore(COUNTS)
    await agent.turn()
    await agent.turn()


async def test_malformed_ledger_entries_are_ignored(two_of_each: Stack, client: Client) -> None:
    import nats

    bus = await nats.connect(two_of_each.nats.url)
    agent = Agent(client, "\n\n" + NONCANONICAL, *REST)
    entries: list[bytes] = []

    async def listen(message: Any) -> None:
        entries.append(message.data)

    await bus.subscribe("tw.v2.ledger.*", cb=listen)
    await bus.flush()
    await agent.turn()
    while not entries:
        await bus.flush()
    changed = entries[0].replace(b'"closed"', b'"close"').replace(b'"ids":"', b'"ids":"AAAA')
    for data in (
        b"",
        b"{}",
        b"null",
        b'{"model":"turnwire-demo"}',
        changed,
        changed[:-20],
        entries[0],
        entries[0] * 2,
    ):
        await bus.publish("tw.v2.ledger.turnwire-demo", data)
    await bus.flush()
    await agent.turn()
    await agent.turn()
    await bus.close()
