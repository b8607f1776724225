"""Tests that a document has the content of its stream, in every API, for the turns of the vectors,
generated turns, and turns that were cut off."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import jiter
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import ToolUseBlock

from fuzz.cases import Case, from_vector
from fuzz.generated_turns import generated_turn
from schemas.events import (
    BlockEvent,
    BlockStart,
    BlockStop,
    Finish,
    FinishReason,
    Prepared,
    TurnEvent,
    Usage,
)
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.turns.interfaces import AnswerInfo, Dialect
from tests.kit.events import call, finish, text
from tests.kit.frontend import MODEL, FakeGateway, serving

VECTORS = sorted((Path(__file__).parents[1] / "vectors").glob("*.jsonl"))
REPLY = AnswerInfo("0a1b2c", "req_0a1b2c", MODEL, 1700000000, now=lambda: 1700000009.5)
QUESTION = [{"role": "user", "content": "Hi."}]

Seen = tuple[list[Any], Any]
"""The blocks that a client has at the end, and the reason of the turn's end."""


def written() -> Iterator[tuple[Case, Random]]:
    for number, path in enumerate(VECTORS):
        for line in path.read_text().splitlines():
            yield from_vector(json.loads(line)), Random(number)
    for seed in range(64):
        chance = Random(seed)
        yield generated_turn(bytes([seed]) + chance.randbytes(60))[0], chance


def turns() -> Iterator[list[TurnEvent]]:
    """Each turn complete, and cut off by `max_tokens`."""
    for case, chance in written():
        yield turn(case, case.raw, case.reason)
        yield turn(case, case.raw[: chance.randrange(len(case.raw) + 1)], FinishReason.LENGTH)


def turn(case: Case, raw: str, reason: FinishReason) -> list[TurnEvent]:
    parser = case.open()
    half = len(raw) // 2
    events: list[BlockEvent] = [
        *parser.feed(raw[:half]),
        *parser.feed(raw[half:]),
        *parser.finish(reason),
    ]
    blocks = sum(isinstance(event, BlockStart) for event in events)
    return [*events, Finish(reason, blocks, Usage(9, 3, 5, 1))]


def payloads(stream: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream's events."""
    for line in stream.split(b"\n"):
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


def of_messages(stream: bytes, document: dict[str, Any]) -> Seen:
    content: list[dict[str, Any]] = []
    reason = None
    for event in payloads(stream):
        if event["type"] == "content_block_start":
            content.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            (field,) = event["delta"].keys() - {"type"}
            content[-1][field] = content[-1].get(field, "") + event["delta"][field]
        elif event["type"] == "message_delta":
            reason = event["delta"]
    for block, whole in zip(content, document["content"], strict=True):
        if block["type"] == "tool_use":
            block["input"] = input_of(block.pop("partial_json"), whole["input"])
    return content, reason


def of_message(document: dict[str, Any]) -> Seen:
    return document["content"], {
        name: document[name] for name in ("stop_reason", "stop_sequence", "stop_details")
    }


def input_of(arguments: str, document_input: dict[str, Any]) -> dict[str, Any]:
    """Returns a document's input after a check that the SDKs make the same of the arguments. The
    SDKs also keep a cut value if it is a number, an object or a list."""
    found = jiter.from_json((arguments or "{}").encode(), partial_mode=True)
    assert list(found)[:-1] == list(document_input)[: len(found) - 1]
    assert document_input.items() <= found.items()
    return document_input


def of_chunks(stream: bytes, document: dict[str, Any]) -> Seen:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    reason = None
    for chunk in payloads(stream):
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            for name in ("content", "reasoning_content"):
                message[name] += choice["delta"].get(name) or ""
            for piece in choice["delta"].get("tool_calls", []):
                if piece["index"] == len(message["calls"]):
                    message["calls"].append([piece["id"], piece["function"]["name"], ""])
                message["calls"][piece["index"]][2] += piece["function"]["arguments"]
    return [message], reason


def of_completion(document: dict[str, Any]) -> Seen:
    (choice,) = document["choices"]
    message = choice["message"]
    calls = [[one["id"], *one["function"].values()] for one in message.get("tool_calls", [])]
    texts = {name: message.get(name) or "" for name in ("content", "reasoning_content")}
    return [{**texts, "calls": calls}], choice["finish_reason"]


def of_events(stream: bytes, document: dict[str, Any]) -> Seen:
    """The items assembled from their pieces, after a check that the last event has the same
    items."""
    items: list[list[str]] = []
    last: dict[str, Any] = {}
    for event in payloads(stream):
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append([event["item"]["type"], event["item"].get("name", ""), ""])
        elif kind.endswith(".delta"):
            items[event["output_index"]][2] += event["delta"]
        last = event
    return items, (last["response"]["status"], last["response"]["incomplete_details"])


def of_response(document: dict[str, Any]) -> Seen:
    items = []
    for item in document["output"]:
        said = item.get("arguments")
        if said is None:
            said = "".join(part["text"] for part in item["content"])
        items.append([item["type"], item.get("name", ""), said])
    return items, (document["status"], document["incomplete_details"])


APIS: Mapping[
    str,
    tuple[
        Dialect,
        dict[str, Any],
        Callable[[bytes, dict[str, Any]], Seen],
        Callable[[dict[str, Any]], Seen],
    ],
] = {
    "messages": (Messages(), {"max_tokens": 64, "messages": QUESTION}, of_messages, of_message),
    "chat": (Chat(ChatSettings()), {"messages": QUESTION}, of_chunks, of_completion),
    "responses": (Responses(), {"input": "Hi."}, of_events, of_response),
}


@pytest.fixture(scope="module")
def all_turns() -> Sequence[list[TurnEvent]]:
    return list(turns())


@pytest.mark.parametrize("api", APIS)
def test_document_has_the_content_of_its_stream(
    api: str, all_turns: Sequence[list[TurnEvent]]
) -> None:
    served, request, of_stream, of_document = APIS[api]
    ask = served.parse(json.dumps({"model": MODEL, **request}).encode(), {})
    cut = 0
    for events in all_turns:
        renderer, collector = ask.renderer(REPLY), ask.collector(REPLY)
        prepared = [Prepared(9, 64)]
        stream = renderer.start(prepared) + b"".join(renderer.events([event]) for event in events)
        collector.start(prepared)
        collector.events(events)
        document = json.loads(collector.body())
        assert of_document(document) == of_stream(stream, document), events
        cut += any(isinstance(event, BlockStop) and not event.complete for event in events)
    assert cut > 100


CUT: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ('{"path": "/a", "old": "x, \\"y', {"path": "/a"}),
    ('{"path": "/a\\', {}),
    ('{"at": {"x": 1}, "of": [1, {"y": 2}, 3', {"at": {"x": 1}}),
    ('{"lines": 12', {}),
    ('{"lines": 12, "all": true', {"lines": 12}),
    ('{"path": "/a"', {"path": "/a"}),
    ('{"path": "/a", "old"', {"path": "/a"}),
    ('{"path": "/a"}', {"path": "/a"}),
]


@pytest.mark.parametrize(("arguments", "kept"), CUT)
async def test_sdk_receives_a_cut_call_equally_from_stream_and_document(
    arguments: str, kept: dict[str, Any]
) -> None:
    events = [*text(0, "Now."), *call(1, "edit", arguments, call_id="toolu_1", complete=False)]
    gateway = FakeGateway(lambda: [[*events, finish(2, FinishReason.LENGTH)]])
    async with serving(gateway) as served:
        client = AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0)
        question: Any = {"model": MODEL, "max_tokens": 64, "messages": QUESTION}
        async with client.messages.stream(**question) as stream:
            streamed = await stream.get_final_message()
        whole = await client.messages.create(**question)
    assert streamed.stop_reason == whole.stop_reason == "max_tokens"
    assert (
        [block.type for block in streamed.content]
        == [block.type for block in whole.content]
        == ["text", "tool_use"]
    )
    block, other = whole.content[1], streamed.content[1]
    assert isinstance(block, ToolUseBlock)
    assert isinstance(other, ToolUseBlock)
    assert block.input == kept
    assert (block.id, block.name) == (other.id, other.name)
    assert kept.items() <= dict(other.input).items()
