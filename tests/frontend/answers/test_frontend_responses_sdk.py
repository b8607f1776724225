"""Tests Responses with the OpenAI SDK: its stream helper, strict client and item types."""

import json
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from schemas.conversation import Call
from schemas.events import BlockStart, Delta
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.render.events import KEEPALIVE
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.state.input_items import stored_items
from tests.kit.bodies import RESPONSES
from tests.kit.telling import PREPARED, Telling, named

if TYPE_CHECKING:
    from openai import OpenAI


def client(
    telling: Telling, asks: list[ConvertedRequest] | None = None, *, strict: bool = True
) -> "OpenAI":
    """An SDK client with the dialect as its server. Except for a strict client, which does not
    accept `keepalive`, every event follows a keep-alive."""
    from openai import OpenAI

    def serve(request: httpx2.Request) -> httpx2.Response:
        ask = Responses().parse(request.read(), request.headers)
        if asks is not None:
            asks.append(ask)
        if not ask.stream:
            collector = ask.collector(telling.info())
            collector.start([PREPARED])
            collector.events(telling.events)
            headers = {"content-type": "application/json"}
            return httpx2.Response(200, content=collector.body(), headers=headers)
        renderer = ask.renderer(telling.info())
        out = [renderer.start([PREPARED])]
        for event in telling.events:
            out += [b"" if strict else KEEPALIVE, renderer.events([event])]
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, content=b"".join(out), headers=headers)

    return OpenAI(
        api_key="k",
        base_url="http://127.0.0.1:1/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(serve)),
        _strict_response_validation=strict,
    )


def request(telling: Telling) -> Any:
    """The request as the SDK's parameters; other members are in `extra_body`."""
    body = telling.body(stream=False)
    extra = {key: body.pop(key) for key in ("generate", "stop") if key in body}
    return {**body, "extra_body": extra}


def test_output_is_accepted_as_input() -> None:
    telling = named(RESPONSES, "interleaved")
    asks: list[ConvertedRequest] = []
    sdk = client(telling, asks)
    output = [item.to_dict() for item in sdk.responses.create(**request(telling)).output]
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
        for item in output
        if item["type"] in ("function_call", "custom_tool_call")
    ]
    replay = [{"role": "user", "content": "Hi."}, *output, *results]
    sdk.responses.create(**request(telling) | {"input": replay})
    _, assistant, tool = asks[1].conversation.messages
    said = [type(part).__name__ for part in assistant.parts]
    assert said == ["Reasoning", "Text", "Call", "Reasoning", "Call", "Call", "Call", "Text"]
    calls = [part for part in assistant.parts if isinstance(part, Call)]
    starts = [event for event in telling.events if isinstance(event, BlockStart) and event.name]
    names = [f"{call.namespace}__{call.name}" if call.namespace else call.name for call in calls]
    assert names == [start.name for start in starts]
    for call, start in zip(calls, starts, strict=True):
        pieces = [event for event in telling.events if isinstance(event, Delta)]
        written = "".join(piece.text for piece in pieces if piece.block == start.block)
        assert json.loads(call.arguments) == json.loads(written)
    assert [result.call_id for result in tool.parts] == [call.call_id for call in calls]  # type: ignore[union-attr]


def test_stored_input_fits_the_sdks_strict_types() -> None:
    from openai.types.responses import ResponseItemList

    image = {"type": "input_image", "image_url": "https://a.example/x.png"}
    seen = [{"type": "input_image", "detail": None}]
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
        {"role": "user", "content": [image]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Ho."}]},
        {"type": "function_call_output", "call_id": "c", "output": seen},
        {"type": "additional_tools", "tools": [{"type": "custom", "name": "x"}]},
    ]
    stored = stored_items(decode(json.dumps({"input": items}).encode()), "t1")
    listed = {"object": "list", "data": stored, "first_id": "a", "last_id": "b", "has_more": False}
    found = ResponseItemList.model_validate(json.loads(msgspec.json.encode(listed)))
    assert [item.type for item in found.data] == [item.get("type", "message") for item in items]
