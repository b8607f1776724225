"""A Messages client for tests: raw event streams, over plain aiohttp."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from schemas.conversation import Conversation
from tests.kit.model_output import written_call
from tests.kit.stack import MODEL
from tests.kit.waiting import LIMIT_S, until
from turnwire_tools.clients import answer
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import SseParser

TOOLS = [
    {
        "name": "run_shell",
        "description": "Runs a command.",
        "input_schema": {
            "type": "object",
            "properties": {"cmd": {"type": "string"}, "timeout_s": {"type": "number"}},
            "required": ["cmd"],
        },
    }
]


def call(cmd: str, **more: object) -> str:
    """A call of this tool as the model writes it."""
    return written_call("run_shell", cmd=cmd, **more)


def say(*outputs: str) -> str:
    """A user message that makes the script engine output these texts, turn by turn (the prompt
    opens the reasoning)."""
    return "".join(f"[[say]]{output}[[/say]]" for output in outputs)


def body(user: str, **more: Any) -> dict[str, Any]:
    """A request."""
    return {
        "model": MODEL,
        "max_tokens": 100_000,
        "messages": [{"role": "user", "content": user}],
        "tools": TOOLS,
        "stream": True,
        **more,
    }


@dataclass
class Event:
    """One SSE event."""

    name: str
    data: dict[str, Any]


@dataclass
class Answer:
    """A stream, assembled; checks the order of its events."""

    events: list[Event]
    blocks: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        open_block: dict[str, Any] | None = None
        for event in self.events:
            data = event.data
            assert event.name == data["type"] or event.name == "tool_call_dispatch"
            if event.name == "content_block_start":
                assert open_block is None, "two blocks open"
                assert data["index"] == len(self.blocks), "indices are not contiguous"
                open_block = dict(data["content_block"], _json="")
                self.blocks.append(open_block)
            elif event.name == "content_block_delta":
                assert open_block is not None
                assert data["index"] == len(self.blocks) - 1
                _apply(open_block, data["delta"])
            elif event.name == "content_block_stop":
                assert open_block is not None
                if open_block["type"] in ("tool_use", "server_tool_use") and open_block["_json"]:
                    try:
                        open_block["input"] = json.loads(open_block["_json"])
                    except ValueError:
                        open_block["input"] = None
                open_block = None
            elif event.name == "message_delta":
                self.stop_reason = data["delta"]["stop_reason"]
                self.stop_sequence = data["delta"]["stop_sequence"]
                self.usage = data["usage"]
            elif event.name == "error":
                self.error = data["error"]
        if self.error is None:
            assert self.events[0].name == "message_start"
            assert self.events[-1].name == "message_stop"
            assert [e.name for e in self.events].count("message_stop") == 1
            assert open_block is None

    @property
    def kinds(self) -> list[str]:
        return [block["type"] for block in self.blocks]

    @property
    def contents(self) -> list[tuple[str, Any]]:
        """(type, text or input) of each block."""
        values = {"thinking": "thinking", "text": "text", "tool_use": "input"}
        return [(block["type"], block[values[block["type"]]]) for block in self.blocks]

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message as an agent sends it in the next request."""
        return {
            "role": "assistant",
            "content": [{k: v for k, v in b.items() if not k.startswith("_")} for b in self.blocks],
        }


def _apply(block: dict[str, Any], delta: dict[str, Any]) -> None:
    if delta["type"] == "text_delta":
        block["text"] += delta["text"]
    elif delta["type"] == "thinking_delta":
        block["thinking"] += delta["thinking"]
    elif delta["type"] == "signature_delta":
        assert delta["signature"]
        block["signature"] = delta["signature"]
    else:
        block["_json"] += delta["partial_json"]


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """Yields the events of a stream as they arrive."""
    parser = SseParser()
    async for chunk in response.content.iter_any():
        for name, data in parser.feed(chunk):
            yield Event(name, data)


class Client:
    """A client of one frontend."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=4 * LIMIT_S),
        )

    async def ready(self) -> None:
        """Waits until the frontend is ready to serve."""

        async def is_ready() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                async with self.http.get(f"{self.url}/ready") as response:
                    return response.status == 200
            return False

        await until(is_ready)

    async def stream(self, request: dict[str, Any]) -> Answer:
        """Streams one turn to its end."""
        async with self.http.post(f"{self.url}/v1/messages", json=request) as response:
            assert response.status == 200, await response.text()
            return Answer([event async for event in events(response)])

    async def begin(
        self, request: dict[str, Any], event: str, count: int = 1
    ) -> asyncio.Task[Answer]:
        """Starts a turn. Returns when its stream has had this number of events of this name."""
        reached = asyncio.Event()

        async def run() -> Answer:
            got = []
            async with self.http.post(f"{self.url}/v1/messages", json=request) as response:
                assert response.status == 200, await response.text()
                async for one in events(response):
                    got.append(one)
                    if sum(earlier.name == event for earlier in got) == count:
                        reached.set()
            return Answer(got)

        turn = asyncio.create_task(run())
        async with asyncio.timeout(LIMIT_S):
            await reached.wait()
        return turn

    async def converse(
        self, api: answer.Api, conversation: Conversation, *, stream: bool
    ) -> answer.ClientAnswer:
        """The answer to a conversation, by any API."""
        reader, parser = CLIENTS[api].reader(), SseParser()
        body, url = CLIENTS[api].request(conversation, stream=stream), CLIENTS[api].path
        headers = {"content-type": "application/json"}
        async with self.http.post(f"{self.url}{url}", data=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            if not stream:
                reader.document(await response.json())
                return reader.answer
            async for chunk in response.content.iter_any():
                for name, data in parser.feed(chunk):
                    reader.event(name, data)
        reader.finish()
        return reader.answer

    async def post(self, path: str, request: Any, **options: Any) -> tuple[int, dict[str, Any]]:
        """Status and document."""
        async with self.http.post(f"{self.url}{path}", json=request, **options) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self.http.get(f"{self.url}{path}") as response:
            return response.status, await response.json()
