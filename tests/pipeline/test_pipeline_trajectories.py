"""`turnwire trajectories` over real processes: sessions with tools, side by side, and an
independent check of every id."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.kit.messages_client import Answer, Client, body, call, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack
from tests.kit.waiting import LIMIT_S
from tests.pipeline.tap import Tap

OUTPUTS = (
    "  I look first,  \nthen I act. \n</think>\n\n Looking  \n\n\n"
    + call("ls  -l", timeout_s="2.50")
    + "\n",
    "\n</think>\n\nOne more.\n" + call("pwd"),
    "So that is it.\n</think>\n\nDone. ",
)

pytestmark = pytest.mark.slow  # a stack of its own


@pytest.fixture(scope="module")
def own(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    running = Stack(make_nats(), demo_model, tmp_path_factory.mktemp("trajectories"))
    try:
        yield running.start_all()
    finally:
        running.stop()


@pytest.fixture
def tap(own: Stack, tmp_path: Path) -> Iterator[Tap]:
    running = Tap(own.nats.url, tmp_path)
    yield running
    running.stop()


@pytest.fixture
async def client(own: Stack) -> AsyncIterator[Client]:
    connected = Client(own.url)
    yield connected
    await connected.http.close()


class Agent:
    """A Messages client that runs every call."""

    def __init__(self, client: Client, *outputs: str, session: str | None = None) -> None:
        self.client = client
        self.session = session
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": say(*outputs)}]
        self.ids: list[list[int]] = []
        """What the API returned for each turn: prompt and output."""

    async def turn(self, **more: Any) -> Answer:
        metadata = {"user_id": json.dumps({"session_id": self.session})} if self.session else {}
        request = body("", messages=self.messages, return_token_ids=True, metadata=metadata, **more)
        answer = await self.client.stream(request)
        self.messages.append(answer.message)
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": f"result of {block['input']}",
            }
            for block in answer.message["content"]
            if block["type"] == "tool_use"
        ]
        self.messages.append({"role": "user", "content": results or "And then?"})
        start = answer.events[0].data["message"]
        end = next(event.data for event in answer.events if event.name == "message_delta")
        assert len(end["token_ids"]) == answer.usage["output_tokens"]
        self.ids.append(start["prompt_token_ids"] + end["token_ids"])
        return answer


async def test_one_session_is_one_sample(client: Client, tap: Tap, demo_model: Path) -> None:
    agent = Agent(client, *OUTPUTS, session="s1")
    for _ in OUTPUTS:
        await agent.turn(logprobs=True)
    (sample,) = tap.samples(demo_model)
    assert sample["ids"] == agent.ids[-1]
    assert [sample["ids"][: span["end"]] for span in sample["turns"]] == agent.ids
    assert (sample["session"], sample["departs"]) == ("s1", None)
    assert all(
        (value is not None) == bool(bit)
        for value, bit in zip(sample["logprobs"], sample["loss_mask"], strict=True)
    )

    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    blocks = [
        (block, sample["ids"][block["start"] : block["end"]])
        for span in sample["turns"]
        for block in span["blocks"]
    ]
    texts = [
        (block["kind"], tokenizer.decode(ids, skip_special_tokens=False)) for block, ids in blocks
    ]
    assert [kind for kind, _ in texts] == ["reasoning", "text", "tool_use"] * 1 + [
        "text",
        "tool_use",
        "reasoning",
        "text",
    ]
    assert [block.get("name") for block, _ in blocks if block["kind"] == "tool_use"] == [
        "run_shell",
        "run_shell",
    ]
    assert "I look first" in texts[0][1]
    assert texts[1][1].strip() == "Looking"
    assert "ls  -l" in texts[2][1]
    assert "</think>" not in "".join(text for _, text in texts)


async def test_trajectories_follow_a_live_bus(own: Stack, client: Client) -> None:
    """Without a file the bus is followed; a quiet session is written at once."""
    argv = [
        sys.executable,
        "-m",
        "services.cli.main",
        "trajectories",
        "--nats-url",
        own.nats.url,
        "--idle-s",
        "0",
    ]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            assert b"listening" in await process.stderr.readline()
            agent = Agent(client, "Hm.\n</think>\n\nLive.")
            await agent.turn()
            assert json.loads(await process.stdout.readline())["ids"] == agent.ids[-1]
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
