"""Tests the compliance cases of Open Responses, named as in its suite.

`open_responses.py` has the suite's schemas. They have no raw reasoning events, so the model does
not think, or a summary is requested.
"""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.conversation import Media, Result, ToolChoice
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Failed, FinishReason
from tests.frontend.responses.open_responses import check_events, check_response
from tests.frontend.responses.responses_client import Client, said
from tests.kit.events import Step, call, finish, reasoning, text
from tests.kit.frontend import MODEL, FakeGateway, serving

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode()
PDF = base64.b64encode(b"%PDF-1.4\n%%EOF\n").decode()
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a place.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
CALL = '{"location": "San Francisco"}'
CALLING: list[Step] = [[*call(0, "get_weather", CALL, call_id="call_w"), finish(1)]]


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(lambda: [[*text(0, "Hello there, friend."), finish(1)]])


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[Client]:
    async with serving(gateway) as served, ClientSession() as http:
        yield Client(http, served)


def message(role: str, *content: Any, **fields: Any) -> dict[str, Any]:
    parts = content[0] if len(content) == 1 and isinstance(content[0], str) else [*content]
    return {"type": "message", "role": role, "content": parts, **fields}


@pytest.mark.parametrize("stream", [False, True], ids=["basic-response", "streaming-response"])
async def test_response_is_valid(client: Client, stream: bool) -> None:
    body: dict[str, Any] = {"input": [message("user", "Say hello in exactly 3 words.")]}
    made = check_events(await client.stream(**body)) if stream else await client.create(**body)
    check_response(made)
    assert made["output"][0]["content"][0]["text"] == "Hello there, friend."


ALICE = message("user", "My name is Alice.")
GREETING = {"type": "output_text", "text": "Hello Alice!", "annotations": [], "logprobs": []}
GREETED = message("assistant", GREETING, id="msg_1", status="completed")
NAME = message("user", "What is my name?")


@pytest.mark.parametrize(
    ("talk", "read"),
    [
        (
            [message("system", "You are a pirate."), message("user", "Say hello.")],
            [("system", ["You are a pirate."]), ("user", ["Say hello."])],
        ),
        (
            [ALICE, GREETED, NAME],
            [
                ("user", ["My name is Alice."]),
                ("assistant", ["Hello Alice!"]),
                ("user", ["What is my name?"]),
            ],
        ),
    ],
    ids=["system-prompt", "multi-turn"],
)
async def test_input_is_accepted(
    client: Client, gateway: FakeGateway, talk: Any, read: Any
) -> None:
    check_response(await client.create(input=talk))
    assert said(gateway.turns[0].conversation) == read


IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
DATA = f"data:application/pdf;base64,{PDF}"
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": DATA}


@pytest.mark.parametrize(
    ("part", "read"),
    [
        (IMAGE, {"kind": "image", "media_type": "image/png", "size_bytes": 72}),
        (FILE, {"kind": "document", "media_type": "application/pdf", "title": "a.pdf"}),
    ],
    ids=["image-input", "file-input"],
)
async def test_media_are_accepted(
    client: Client, gateway: FakeGateway, part: Any, read: dict[str, Any]
) -> None:
    question = {"type": "input_text", "text": "What is in this?"}
    check_response(await client.create(input=[message("user", question, part)]))
    seen = gateway.turns[0].conversation.messages[0].parts[1]
    assert isinstance(seen, Media)
    assert {name: getattr(seen, name) for name in read} == read


@pytest.mark.parametrize("stream", [False, True], ids=["tool-calling", "tool-calling-streaming"])
async def test_tool_call_is_returned(client: Client, gateway: FakeGateway, stream: bool) -> None:
    gateway.steps = lambda: CALLING
    body: dict[str, Any] = {"input": [message("user", "The weather?")], "tools": [WEATHER]}
    if stream:
        events = await client.stream(**body)
        made = check_events(events)
        assert {event["type"].removeprefix("response.") for event in events} >= {
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        }
    else:
        made = check_response(await client.create(**body))
    (item,) = made["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "get_weather", CALL)
    assert made["tools"][0]["name"] == "get_weather"


async def test_function_call_output_is_accepted(client: Client, gateway: FakeGateway) -> None:
    answering = gateway.steps
    gateway.steps = lambda: CALLING
    choice = {"type": "function", "name": "get_weather"}
    question = [message("user", "The weather?")]
    asked = await client.create(input=question, tools=[WEATHER], tool_choice=choice)
    assert check_response(asked)["tool_choice"] == choice
    assert gateway.turns[0].conversation.tool_choice == ToolChoice("tool", "get_weather")
    gateway.steps = answering
    output = {"type": "function_call_output", "output": '{"temp": 21}'}
    output["call_id"] = asked["output"][0]["call_id"]
    answered = await client.create(
        previous_response_id=asked["id"], input=[output], tools=[WEATHER], tool_choice="auto"
    )
    assert check_response(answered)["output"][0]["type"] == "message"
    assert answered["previous_response_id"] == asked["id"]
    result = gateway.turns[1].conversation.messages[-1].parts[0]
    assert isinstance(result, Result)
    assert (result.call_id, result.name) == ("call_w", "get_weather")


async def test_previous_response_id_continues_a_response(
    client: Client, gateway: FakeGateway
) -> None:
    first = check_response(await client.create(input="My name is Alice."))
    again = {"previous_response_id": first["id"], "input": "What is my name?"}
    second = check_response(await client.create(**again))
    assert second["previous_response_id"] == first["id"]
    assert said(gateway.turns[1].conversation) == [
        ("user", ["My name is Alice."]),
        ("assistant", ["Hello there, friend."]),
        ("user", ["What is my name?"]),
    ]


@pytest.mark.parametrize("kind", ["file_search", "web_search"])
async def test_hosted_tools_do_not_fail_the_request(
    client: Client, gateway: FakeGateway, kind: str
) -> None:
    """The suite's optional cases request these; they are accepted and not offered to the model."""
    check_response(await client.create(tools=[{"type": kind}]))
    assert gateway.turns[0].conversation.tools == []


async def test_reasoning_is_also_sent_as_a_summary(client: Client, gateway: FakeGateway) -> None:
    gateway.steps = lambda: [[*reasoning(0, "Let me think."), *text(1, "Yes."), finish(2)]]
    events = await client.stream(
        reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"]
    )
    kind = "response.reasoning_summary_text.delta"
    pieces = [event["delta"] for event in events if event["type"] == kind]
    assert "".join(pieces) == "Let me think."
    thought = events[-1]["response"]["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "Let me think."}]
    assert thought["encrypted_content"] == "c2VhbA"


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_answer_is_incomplete(client: Client, gateway: FakeGateway, stream: bool) -> None:
    gateway.steps = lambda: [[*text(0, "It goes on and"), finish(1, FinishReason.LENGTH)]]
    if stream:
        made = check_events(await client.stream(max_output_tokens=16))
    else:
        made = check_response(await client.create(max_output_tokens=16), "incomplete")
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made["completed_at"] is None


async def test_failure_ends_with_response_failed(client: Client, gateway: FakeGateway) -> None:
    failed = Failed(ErrorInfo(ErrorKind.ENGINE, "The engine failed."))
    gateway.steps = lambda: [[*text(0, "So")], [failed]]
    made = check_events(await client.stream())
    assert made["error"] == {"code": "server_error", "message": "The engine failed."}


async def test_all_settings_are_echoed(client: Client) -> None:
    settings = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 64,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "truncation": "auto",
        "user": "u",
        "top_logprobs": 2,
    }
    made = check_response(await client.create(**settings))
    assert {name: made[name] for name in settings} == settings
    assert made["model"] == MODEL
