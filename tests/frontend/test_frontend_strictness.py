"""Tests that requests which the vendors' APIs refuse are refused with their wording;
docs/differences.md lists the exceptions."""

import json
from typing import Any

import pytest

from schemas.errors import Invalid
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.shared.content import base64_size
from services.frontend.turns.interfaces import Dialect

Json = dict[str, Any]
APIS: dict[str, Dialect] = {
    "messages": Messages(),
    "chat": Chat(ChatSettings()),
    "responses": Responses(),
}
SCHEMA = {"type": "object"}
CLEAR_THINKING = {"type": "clear_thinking_20251015", "keep": "all"}
PNG = "iVBORw0KGgo="
PATTERN = "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
EXPECTED = "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
AN_IMAGE = "Expected a base64-encoded data URL with an image MIME type (e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=')"
INCLUDABLE = (
    "'file_search_call.results', 'web_search_call.results', 'web_search_call.action.sources', "
    "'message.input_image.image_url', 'computer_call_output.output.image_url', 'code_interpreter_call.outputs', "
    "'reasoning.encrypted_content', and 'message.output_text.logprobs'"
)


def messages(**fields: Any) -> tuple[str, Json]:
    return "messages", {
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "Hi."}],
        **fields,
    }


def chat(**fields: Any) -> tuple[str, Json]:
    return "chat", {"messages": [{"role": "user", "content": "Hi."}], **fields}


def responses(**fields: Any) -> tuple[str, Json]:
    return "responses", {"input": "Hi.", **fields}


def image(media_type: str, data: str) -> tuple[str, Json]:
    source = {"type": "base64", "media_type": media_type, "data": data}
    return messages(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])


def document(media_type: str, data: str) -> tuple[str, Json]:
    source = {"type": "base64", "media_type": media_type, "data": data}
    return messages(
        messages=[{"role": "user", "content": [{"type": "document", "source": source}]}]
    )


def result_image(media_type: str) -> tuple[str, Json]:
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    block = {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": PNG}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    return messages(
        messages=[{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    )


def chat_part(part: Json) -> tuple[str, Json]:
    return chat(messages=[{"role": "user", "content": [part]}])


def chat_image(url: str) -> tuple[str, Json]:
    return chat_part({"type": "image_url", "image_url": {"url": url}})


def input_image(url: str) -> tuple[str, Json]:
    return responses(
        input=[{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    )


def tool(api: str, name: str) -> tuple[str, Json]:
    if api == "messages":
        return messages(tools=[{"name": name, "input_schema": SCHEMA}])
    if api == "chat":
        return chat(tools=[{"type": "function", "function": {"name": name, "parameters": SCHEMA}}])
    return responses(
        tools=[{"type": "function", "name": name, "parameters": SCHEMA, "strict": False}]
    )


REFUSED: list[tuple[tuple[str, Json], str, str]] = [
    (
        image("image/bmp", PNG),
        "messages.0.content.0.image.source.base64.media_type: "
        "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
        "messages.0.content.0.source.media_type",
    ),
    (
        result_image("image/svg+xml"),
        "messages.1.content.0.tool_result.content.0.image.source.base64.media_type: "
        "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
        "messages.1.content.0.tool_result.content.0.source.media_type",
    ),
    (
        image("image/png", "!!!"),
        "messages.0.content.0.image.source.base64: invalid base64 data",
        "messages.0.content.0.source.data",
    ),
    (
        image("image/png", "iVBORw0KGgo"),
        "messages.0.content.0.image.source.base64: invalid base64 data",
        "messages.0.content.0.source.data",
    ),
    (
        image("image/png", ""),
        "messages.0.content.0.image.source.base64: image cannot be empty",
        "messages.0.content.0.source.data",
    ),
    (
        document("application/msword", PNG),
        "messages.0.content.0.document.source.base64.media_type: Input should be 'application/pdf'",
        "messages.0.content.0.source.media_type",
    ),
    (
        document("application/pdf", "JVBER"),
        "messages.0.content.0.pdf.source.base64.data: The PDF specified was not valid.",
        "messages.0.content.0.source.data",
    ),
    (tool("messages", "two words"), f"tools.0.custom.name: {PATTERN}", "tools.0.name"),
    (tool("messages", "x" * 129), f"tools.0.custom.name: {PATTERN}", "tools.0.name"),
    (
        messages(temperature=2.5),
        "temperature: Input should be less than or equal to 2",
        "temperature",
    ),
    (messages(top_p=-0.5), "top_p: Input should be greater than or equal to 0", "top_p"),
    (
        messages(repetition_penalty=0),
        "repetition_penalty: Input should be greater than 0",
        "repetition_penalty",
    ),
    (
        chat_image("data:text/plain;base64,aGk="),
        f"Invalid 'messages[0].content[0].image_url.url'. {AN_IMAGE}, but got unsupported MIME type 'text/plain'.",
        "messages[0].content[0].image_url.url",
    ),
    (
        chat_image("data:image/png;base64,???"),
        f"Invalid 'messages[0].content[0].image_url.url'. {AN_IMAGE}, but got an invalid base64-encoded value.",
        "messages[0].content[0].image_url.url",
    ),
    (
        chat_part(
            {
                "type": "file",
                "file": {"file_data": "data:application/pdf;base64,", "filename": "a.pdf"},
            }
        ),
        "Invalid file data: 'messages[0].content[0].file.file_data'. Expected a base64-encoded data URL "
        "(e.g. 'data:application/pdf;base64,SGVsbG8sIFdvcmxkIQ=='), but got empty base64-encoded bytes.",
        "messages[0].content[0].file.file_data",
    ),
    (
        tool("chat", "two words"),
        f"Invalid 'tools[0].function.name': string does not match pattern. {EXPECTED}",
        "tools[0].function.name",
    ),
    (
        tool("chat", "x" * 65),
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a "
        "string with length 65 instead.",
        "tools[0].function.name",
    ),
    (
        input_image("data:image/png;base64,"),
        f"Invalid 'input[0].content[0].image_url'. {AN_IMAGE}, but got empty base64-encoded bytes.",
        "input[0].content[0].image_url",
    ),
    (
        tool("responses", "a.b"),
        f"Invalid 'tools[0].name': string does not match pattern. {EXPECTED}",
        "tools[0].name",
    ),
    (
        responses(include=["reasoning.encrypted_content", "everything"]),
        f"Invalid value: 'everything'. Supported values are: {INCLUDABLE}.",
        "include[1]",
    ),
    (
        responses(metadata={str(number): "" for number in range(17)}),
        "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, but got an object "
        "with 17 properties instead.",
        "metadata",
    ),
    (
        responses(metadata={"topic": "weather", "actual": "x" * 513}),
        "Invalid 'metadata.actual': string too long. Expected a string with maximum length 512, but got a string with "
        "length 513 instead.",
        "metadata.actual",
    ),
    (
        responses(metadata={"topic": "weather", "k" * 65: ""}),
        f"Invalid 'metadata.{'k' * 65}': string too long. Expected a string with maximum length 64, but got a string "
        "with length 65 instead.",
        f"metadata.{'k' * 65}",
    ),
    (
        responses(metadata={"topic": "weather", "a.b": 5}),
        "Invalid type for 'metadata.a.b': expected a string, but got an integer instead.",
        "metadata.a.b",
    ),
    (
        chat(logit_bias={"5": 1, "7": "x"}),
        "Invalid type for 'logit_bias.7': expected a decimal, but got a string instead.",
        "logit_bias.7",
    ),
    (
        responses(max_tool_calls=0),
        "Invalid 'max_tool_calls': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        "max_tool_calls",
    ),
    (
        responses(presence_penalty=-3),
        "Invalid 'presence_penalty': decimal below minimum value. Expected a value >= -2, but got -3 instead.",
        "presence_penalty",
    ),
]
TAKEN = [
    image("image/png", PNG),
    document("text/plain", "aGk="),
    tool("messages", "mcp__server__" + "x" * 115),
    tool("chat", "mcp__server__" + "x" * 51),
    tool("responses", "x" * 64),
    chat_image("data:image/jpg;base64,/9j/"),
    chat_image("https://example.com/a.png"),
    responses(include=["web_search_call.action.sources"]),
    messages(temperature=1.5, top_k=-1),
    messages(
        tools=[{"name": "look", "input_schema": {}}], context_management={"edits": [CLEAR_THINKING]}
    ),
    messages(messages=[{"role": "user", "content": []}]),
    chat(
        tools=[],
        functions=[],
        tool_choice="auto",
        parallel_tool_calls=False,
        stream_options={"include_usage": True},
    ),
    chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
    chat(
        messages=[
            {"role": "user", "content": []},
            {"role": "assistant", "content": "Hi.", "tool_calls": []},
        ]
    ),
    messages(
        messages=[
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "b c", "input": {}}],
            }
        ]
    ),
]


@pytest.mark.parametrize(
    ("request_", "message", "param"),
    REFUSED,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusal_has_native_wording(request_: tuple[str, Json], message: str, param: str) -> None:
    api, body = request_
    with pytest.raises(Invalid) as refusal:
        APIS[api].parse(json.dumps({"model": "m", **body}).encode(), {})
    assert (refusal.value.info.message, refusal.value.info.param) == (message, param)


@pytest.mark.parametrize("request_", TAKEN, ids=str)
def test_valid_request_is_accepted(request_: tuple[str, Json]) -> None:
    api, body = request_
    assert APIS[api].parse(json.dumps({"model": "m", **body}).encode(), {}).conversations


@pytest.mark.parametrize(
    "options",
    [
        5,
        "5m",
        [],
        {"ttl": "5m"},
        {"ttl": "1h"},
        {"ttl": ""},
        {"ttl": 30},
        {"ttl": ["30m"]},
        {"ttl": {}},
        {"ttl": True},
    ],
    ids=repr,
)
def test_wrong_lifetime_of_a_prefix_has_one_message_in_every_api_of_openai(options: Any) -> None:
    errors = set()
    for dialect, body in (
        (Completions(), {"prompt": "Hi."}),
        (APIS["chat"], chat()[1]),
        (Responses(), {"input": "Hi."}),
    ):
        with pytest.raises(Invalid) as refusal:
            dialect.parse(
                json.dumps({"model": "m", "prompt_cache_options": options, **body}).encode(), {}
            )
        info = refusal.value.info
        errors.add((info.message, info.param, info.code))
    assert len(errors) == 1, errors
    if isinstance(options, dict) and isinstance(options["ttl"], str):
        assert errors.pop()[0].endswith("Supported values are: '30m' and '12h'.")


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
@pytest.mark.parametrize("body", [messages(), chat(), responses()], ids=lambda body: str(body[0]))
def test_numbers_are_finite(body: tuple[str, Json], number: str) -> None:
    api, fields = body
    for field in ("temperature", "top_p", "min_p"):
        data = json.dumps({"model": "m", **fields, field: "§"}).replace('"\\u00a7"', number)
        with pytest.raises(Invalid):
            APIS[api].parse(data.encode(), {})


@pytest.mark.parametrize(
    ("data", "size"),
    [
        ("", 0),
        ("AAAA", 3),
        ("AAA=", 2),
        ("AA==", 1),
        ("A===", None),
        ("AAA", None),
        ("A=AA", None),
        ("AA A", None),
        ("ÄÄÄÄ", None),
    ],
)
def test_size_of_base64_is_computed_without_decoding(data: str, size: int | None) -> None:
    assert base64_size(data) == size
    assert base64_size(data.encode()) == size
