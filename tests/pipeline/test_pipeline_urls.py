"""Nothing that a request names by its URL is fetched, by any process: a listener on this machine is
never connected to."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.messages_client import say
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S

USER = {"type": "text", "text": say("</think>hello")}
INPUT = {"type": "input_text", "text": say("</think>hello")}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def messages(*content: Any, **more: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": 40,
        "messages": [{"role": "user", "content": [USER, *content]}],
        **more,
    }


def chat(*content: Any, **more: Any) -> dict[str, Any]:
    return messages(*content, **more)


def responses(*content: Any, **more: Any) -> dict[str, Any]:
    ask = {"role": "user", "content": [INPUT, *content]}
    return {"model": MODEL, "max_output_tokens": 40, "input": [ask], "store": False, **more}


def requests(url: str) -> list[tuple[str, dict[str, Any], int]]:
    """Requests that name `url`, each with its path and the status of its answer."""
    source = {"type": "url", "url": url}
    called = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "image", "source": source}],
    }
    talk = [
        {"role": "user", "content": [USER]},
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [result, USER]},
    ]
    computer = {"type": "computer_screenshot", "image_url": url}
    mcp = {"type": "mcp", "server_label": "x", "server_url": url, "require_approval": "never"}
    ref = {"type": "object", "$ref": url, "$schema": url}
    function = {"name": "look", "description": url, "parameters": ref}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": ref}}
    return [
        ("/v1/messages", messages({"type": "image", "source": source}), 200),
        ("/v1/messages", messages({"type": "document", "source": source}), 200),
        ("/v1/messages", {**messages(), "messages": talk}, 200),
        ("/v1/messages", messages(tools=[{"name": "look", "input_schema": ref}]), 200),
        (
            "/v1/messages",
            messages(tools=[{"type": "web_fetch_20250910", "name": "web_fetch"}]),
            200,
        ),
        (
            "/v1/messages",
            messages(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
            200,
        ),
        ("/v1/messages", messages(mcp_servers=[{"type": "url", "url": url, "name": "x"}]), 400),
        (
            "/v1/messages/count_tokens",
            {**messages({"type": "image", "source": source}), "max_tokens": None},
            200,
        ),
        ("/v1/chat/completions", chat({"type": "image_url", "image_url": {"url": url}}), 200),
        ("/v1/chat/completions", chat({"type": "image_url", "image_url": url}), 200),
        (
            "/v1/chat/completions",
            chat({"type": "file", "file": {"file_data": url, "filename": "a.pdf"}}),
            400,
        ),
        ("/v1/chat/completions", chat({"type": "audio_url", "audio_url": {"url": url}}), 200),
        ("/v1/chat/completions", chat({"type": "video_url", "video_url": {"url": url}}), 200),
        ("/v1/chat/completions", chat(tools=[{"type": "function", "function": function}]), 200),
        ("/v1/chat/completions", chat(response_format=schema), 200),
        ("/v1/chat/completions", chat(web_search_options={"search_context_size": "low"}), 200),
        (
            "/v1/responses",
            responses({"type": "input_image", "image_url": url, "detail": "auto"}),
            200,
        ),
        ("/v1/responses", responses({"type": "input_file", "file_url": url}), 200),
        ("/v1/responses", responses(tools=[mcp]), 200),
        (
            "/v1/responses",
            responses(tools=[{"type": "web_search"}, {"type": "image_generation"}]),
            200,
        ),
        ("/v1/responses", {**responses(), "input": [{"type": "item_reference", "id": url}]}, 404),
        ("/v1/responses", responses(previous_response_id=url), 400),
        (
            "/v1/responses",
            {
                **responses(),
                "input": [
                    {"type": "computer_call_output", "call_id": "c1", "output": computer},
                    {"role": "user", "content": [INPUT]},
                ],
            },
            200,
        ),
        (
            "/v1/tokenize",
            {"model": MODEL, "messages": messages({"type": "image", "source": source})["messages"]},
            200,
        ),
    ]


def post(url: str, body: dict[str, Any]) -> tuple[int, bytes]:
    body = {key: value for key, value in body.items() if value is not None}
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def connections(listener: socket.socket) -> int:
    """The connections since the last call."""
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_url_of_a_request_is_fetched(stack: Stack, listener: socket.socket, scheme: str) -> None:
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), LIMIT_S):
        pass
    assert connections(listener) == 1, "the listener counts"
    unexpected: list[Any] = []
    for path, body, status in requests(f"{scheme}://127.0.0.1:{port}/picture.png"):
        answered, answer = post(stack.url + path, body)
        assert answered < 500, answer
        if answered != status:
            unexpected.append((path, body, answered, answer))
        assert connections(listener) == 0, body
    assert not unexpected, "\n".join(repr(one)[:700] for one in unexpected)
    assert connections(listener) == 0
