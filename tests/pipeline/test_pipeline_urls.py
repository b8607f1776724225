"""Nothing that a request names by its URL is fetched, by any process: a listener on this machine is
never connected to."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.messages_client import Client, say
from tests.kit.stack import MODEL
from tests.kit.waiting import LIMIT_S

USER = {"type": "text", "text": say("</think>hello")}
INPUT = {"type": "input_text", "text": say("</think>hello")}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def messages(*content: Any, **more: Any) -> dict[str, Any]:
    """A request of Messages, which is one of Chat Completions, too."""
    turns = [{"role": "user", "content": [USER, *content]}]
    return {"model": MODEL, "max_tokens": 40, "messages": turns, **more}


def responses(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": [*items, {"role": "user", "content": [INPUT]}], **more}


def requests(url: str) -> list[tuple[str, dict[str, Any], int]]:
    """Requests that name `url`, each with its path and the status of its answer."""
    image = {"type": "image", "source": {"type": "url", "url": url}}
    document = {"type": "document", "source": {"type": "url", "url": url}}
    file = {"type": "file", "file": {"file_data": url, "filename": "a.pdf"}}
    picture = {"type": "input_image", "image_url": url, "detail": "auto"}
    attached = {"type": "input_file", "file_url": url}
    shot = {"type": "computer_screenshot", "image_url": url}
    call = {"type": "computer_call_output", "call_id": "c1", "output": shot}
    mcp = {"type": "mcp", "server_label": "x", "server_url": url, "require_approval": "never"}
    ref = {"type": "object", "$ref": url, "$schema": url}
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch"}
    return [
        ("/v1/messages", messages(image), 200),
        ("/v1/messages", messages(document), 200),
        ("/v1/messages", messages(tools=[{"name": "look", "input_schema": ref}]), 200),
        ("/v1/messages", messages(tools=[fetch]), 200),
        ("/v1/tokenize", messages(image), 200),
        ("/v1/chat/completions", messages({"type": "image_url", "image_url": {"url": url}}), 200),
        ("/v1/chat/completions", messages(file), 400),
        ("/v1/responses", responses({"role": "user", "content": [picture]}), 200),
        ("/v1/responses", responses({"role": "user", "content": [attached]}), 200),
        ("/v1/responses", responses(tools=[mcp]), 200),
        ("/v1/responses", responses(call), 200),
    ]


async def test_no_url_of_a_request_is_fetched(client: Client, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    for scheme in ("http", "https"):
        for path, body, status in requests(f"{scheme}://127.0.0.1:{port}/picture.png"):
            answered, answer = await client.post(path, body)
            assert answered == status, (path, body, answer)
            with pytest.raises(BlockingIOError):  # nobody has connected
                listener.accept()
    with socket.create_connection(("127.0.0.1", port), LIMIT_S):
        listener.accept()[0].close()
