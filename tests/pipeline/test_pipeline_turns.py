"""Turns through four processes and a real bus."""

import asyncio
from typing import Any

from tests.kit.messages_client import Client, body, call, events, say
from tests.kit.waiting import LIMIT_S

INTERLEAVED = (
    "I list the files.\n</think>\n\nLooking.\n\n"
    + call("ls -l", timeout_s=2.5)
    + "\n<think>\nAnd the date.\n</think>\n\n"
    + call("date")
    + "\n\nBoth asked."
)
EXPECTED = [
    ("thinking", "I list the files."),
    ("text", "Looking."),
    ("tool_use", {"cmd": "ls -l", "timeout_s": 2.5}),
    ("thinking", "And the date."),
    ("tool_use", {"cmd": "date"}),
    ("text", "Both asked."),
]


def trimmed(contents: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(kind, value.strip() if isinstance(value, str) else value) for kind, value in contents]


async def test_stream_and_document_have_the_same_blocks_in_their_order(client: Client) -> None:
    answer = await client.stream(body(say(INTERLEAVED)))
    assert trimmed(answer.contents) == EXPECTED
    assert answer.stop_reason == "tool_use"
    ids = [block["id"] for block in answer.blocks if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
    thoughts = [block for block in answer.blocks if block["type"] == "thinking"]
    assert [block for block in thoughts if not block["signature"]] == []
    status, message = await client.post("/v1/messages", body(say(INTERLEAVED), stream=False))
    assert (status, message["stop_reason"]) == (200, "tool_use")
    values = {"thinking": "thinking", "text": "text", "tool_use": "input"}
    blocks = [(block["type"], block[values[block["type"]]]) for block in message["content"]]
    assert blocks == answer.contents
    assert message["usage"]["output_tokens"] == answer.usage["output_tokens"]


async def test_a_call_is_complete_before_the_end_of_the_turn(client: Client) -> None:
    """The turn does not end: nothing follows the call."""
    output = f"Now.\n</think>\n\n{call('ls')}\n\n[[silence]]Listed."
    url = f"{client.url}/v1/messages"
    async with asyncio.timeout(LIMIT_S), client.http.post(url, json=body(say(output))) as response:
        stream = events(response)
        while (await anext(stream)).data.get("content_block", {}).get("type") != "tool_use":
            pass
        while (await anext(stream)).name != "content_block_stop":
            pass
        response.close()


async def test_a_hundred_streams_run_at_once(client: Client) -> None:
    async def turn(n: int) -> None:
        output = f"Number {n}.\n</think>\n\n[[delay 5]]{'word ' * 20}{n}\n\n" + call(f"echo {n}")
        answer = await client.stream(body(say(output)))
        assert trimmed(answer.contents) == [
            ("thinking", f"Number {n}."),
            ("text", ("word " * 20) + str(n)),
            ("tool_use", {"cmd": f"echo {n}"}),
        ]

    await asyncio.gather(*(turn(n) for n in range(100)))
