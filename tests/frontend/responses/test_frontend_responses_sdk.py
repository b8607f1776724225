"""Tests streams and documents with the OpenAI SDK: its stream helper, strict client and item
types."""

import json
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseItemList

from schemas.conversation import Call
from schemas.events import BlockStart, Delta, failure_of
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.render.events import KEEPALIVE
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.state.input_items import stored_items
from tests.frontend.responses.test_frontend_responses_stream import CASES, PREPARED, Case, load


def client(case: Case, asks: list[ConvertedRequest], *, strict: bool = True) -> openai.OpenAI:
    """An SDK client with the dialect as its server. Except for a strict client, which does not
    accept `keepalive`, every event follows a keep-alive."""

    def serve(request: httpx2.Request) -> httpx2.Response:
        ask = Responses().parse(request.read(), request.headers)
        asks.append(ask)
        if not ask.stream:
            collector = ask.collector(case.reply())
            collector.start([PREPARED])
            collector.events(case.events)
            return httpx2.Response(
                200, content=collector.body(), headers={"content-type": "application/json"}
            )
        renderer = ask.renderer(case.reply())
        out = [renderer.start([PREPARED])]
        for event in case.events:
            out += [b"" if strict else KEEPALIVE, renderer.events([event])]
        return httpx2.Response(
            200, content=b"".join(out), headers={"content-type": "text/event-stream"}
        )

    return openai.OpenAI(
        api_key="k",
        base_url="http://127.0.0.1:1/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(serve)),
        _strict_response_validation=strict,
    )


FINISHED = [path for path in CASES if failure_of(load(path).events[-1]) is None]
STREAMED = [path for path in FINISHED if not load(path).dispatch]


def request_of(case: Case) -> dict[str, Any]:
    """The request as the SDK's parameters; other members are in `extra_body`."""
    extra = {key: value for key, value in case.request.items() if key in ("generate", "stop")}
    rest = {key: value for key, value in case.request.items() if key not in (*extra, "stream")}
    return {**rest, "extra_body": extra}


@pytest.mark.parametrize("path", STREAMED, ids=lambda path: path.stem)
def test_stream_helper_ends_with_the_document(path: Path) -> None:
    case = load(path)
    snapshot: Any = None
    texts: dict[str, str] = {}
    with client(case, [], strict=False).responses.stream(**request_of(case)) as stream:
        for event in stream:
            if event.type in ("response.completed", "response.incomplete"):
                snapshot = event.response
            elif (
                event.type == "response.output_text.delta"
                or event.type == "response.function_call_arguments.delta"
            ):
                texts[event.item_id] = event.snapshot
    document = case.document()
    assert snapshot is not None
    assert [item.to_dict()["id"] for item in snapshot.output] == [
        item["id"] for item in document["output"]
    ]
    for item in document["output"]:
        if item["type"] == "message":
            assert texts[item["id"]] == item["content"][0]["text"]
        elif item["type"] == "function_call":
            assert texts.get(item["id"], "") == item["arguments"]


@pytest.mark.parametrize("path", FINISHED, ids=lambda path: path.stem)
def test_strict_client_accepts_every_document(path: Path) -> None:
    case = load(path)
    found = client(case, []).responses.create(**request_of(case))
    assert isinstance(found, Response)
    assert found.status == case.document()["status"]
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens


@pytest.mark.parametrize("path", STREAMED, ids=lambda path: path.stem)
def test_strict_client_accepts_every_event(path: Path) -> None:
    case = load(path)
    with client(case, []).responses.create(**request_of(case), stream=True) as stream:
        types = [event.type for event in stream]
    assert types[0] == "response.created"
    assert types[-1] in ("response.completed", "response.incomplete")


def test_failure_reaches_the_iterating_client() -> None:
    case = load(next(path for path in CASES if path.stem == "failed_in_mid_stream"))
    with client(case, [], strict=False).responses.create(**request_of(case), stream=True) as stream:
        events = [event for event in stream if event.type != "keepalive"]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.message == "the engine failed"


def test_output_is_accepted_as_input() -> None:
    case = load(next(path for path in CASES if path.stem == "interleaved"))
    asks: list[ConvertedRequest] = []
    sdk = client(case, asks)
    first = sdk.responses.create(**request_of(case))
    outputs: list[Any] = []
    for item in first.output:
        if item.type == "function_call":
            outputs.append(
                {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
            )
        elif item.type == "custom_tool_call":
            outputs.append(
                {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "ok"}
            )
    replay = [
        {"role": "user", "content": "Hi."},
        *(item.to_dict() for item in first.output),
        *outputs,
    ]
    sdk.responses.create(**{**request_of(case), "input": replay})
    _, assistant, results = asks[1].conversation.messages
    said = [type(part).__name__ for part in assistant.parts]
    assert said == ["Reasoning", "Text", "Call", "Reasoning", "Call", "Call", "Call", "Text"]
    calls = [part for part in assistant.parts if isinstance(part, Call)]
    told = [
        event for event in case.events if isinstance(event, BlockStart) and event.kind == "tool_use"
    ]
    assert [
        f"{call.namespace}__{call.name}" if call.namespace else call.name for call in calls
    ] == [event.name for event in told]
    written = [
        "".join(e.text for e in case.events if isinstance(e, Delta) and e.block == event.block)
        for event in told
    ]
    assert [json.loads(call.arguments) for call in calls] == [json.loads(text) for text in written]
    assert [result.call_id for result in results.parts] == [call.call_id for call in calls]  # type: ignore[union-attr]


def test_stored_input_fits_the_sdks_strict_types() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Ho."},
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"type": "custom_tool_call", "call_id": "d", "name": "n", "input": "{}"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "o"},
        {"type": "reasoning", "encrypted_content": "e"},
        {"type": "tool_search_call", "call_id": "s", "arguments": {}},
        {"type": "tool_search_output", "call_id": "s", "tools": []},
        {"type": "shell_call", "call_id": "t", "action": {"commands": ["ls"]}},
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": "https://a.example/x.png"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Ho."}]},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "detail": None}],
        },
        {"type": "additional_tools", "tools": [{"type": "custom", "name": "x"}]},
    ]
    stored = stored_items(decode(json.dumps({"input": items}).encode()), "t1")
    listed = {"object": "list", "data": stored, "first_id": "a", "last_id": "b", "has_more": False}
    found = ResponseItemList.model_validate(json.loads(msgspec.json.encode(listed)))
    assert [item.type for item in found.data] == [item.get("type", "message") for item in items]
