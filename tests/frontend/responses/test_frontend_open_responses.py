"""Tests the compliance cases of Open Responses: stories against the schemas of its suite, and its
requests.

`open_responses.py` has the suite's schemas.
"""

import base64
import json
from typing import Any

import pytest

from schemas.conversation import Media, Result, ToolChoice
from tests.frontend.responses.open_responses import EVENTS, ITEMS, check_events, check_response
from tests.frontend.responses.responses_client import Client, said
from tests.kit.answers import events
from tests.kit.bodies import RESPONSES
from tests.kit.events import Step, call, finish, text
from tests.kit.every import Cases
from tests.kit.frontend import FakeGateway
from tests.kit.telling import all_tellings

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


def message(role: str, *content: Any, **fields: Any) -> dict[str, Any]:
    parts = content[0] if len(content) == 1 and isinstance(content[0], str) else [*content]
    return {"type": "message", "role": role, "content": parts, **fields}


def test_stories_fit_the_schemas(cases: Cases) -> None:
    """Stories without raw reasoning and without tools of other kinds."""
    seen: set[str] = set()
    for telling in all_tellings():
        if telling.api is not RESPONSES or telling.story.dispatch:
            continue
        stream = events(telling.stream())
        kinds = {event["type"] for event in stream}
        items = {item["type"] for item in stream[-1]["response"]["output"]}
        if not kinds <= EVENTS.keys() or not items <= ITEMS.keys():
            continue
        with cases.case(telling.name):
            status = check_events(stream)["status"]
            seen |= {*kinds, status}
            if status != "failed":
                check_response(json.loads(telling.document()), status)
    # Thoughts are also told raw, for which the suite has no event.
    wanted = {kind for kind in EVENTS if "summary" not in kind} - {"response.queued", "error"}
    assert seen == {*wanted, "completed", "incomplete", "failed"}


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
