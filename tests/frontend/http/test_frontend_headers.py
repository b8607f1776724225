"""Header values that are not UTF-8: any byte may stand there (RFC 9110, 5.5), and none of them may do harm."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from services.runtime.config import FrontendConfig
from tests.frontend.frontend_fakes import MODEL, Served, serving

CHAT = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": CHAT,
    "/v1/chat/completions": CHAT,
}


async def post(served: Served, path: str, header: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    body = json.dumps(BODIES[path]).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(head + header + b"\r\n\r\n" + body)
    async with asyncio.timeout(60):
        answered, _, document = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *lines = answered.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(document)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", ["user-agent", "x-session-affinity", "x-claude-code-session-id", "x-request-id"])
async def test_header_values_may_have_any_bytes(path: str, name: str) -> None:
    async with serving() as served:
        status, headers, document = await post(served, path, f"{name}: ".encode() + b"a\xff \xc3\xa9 \xed\xa0\x80b")
        conversation = served.gateway.turns[0].conversation
        line = served.lines[-1]
    assert status == 200, document
    assert headers["x-request-id"] == headers["request-id"]
    msgspec.msgpack.encode(conversation)
    msgspec.json.encode(line, enc_hook=str)
    if name == "user-agent":
        assert conversation.client.user_agent == "a? é ???b"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("header", "status"), [(b"content-encoding: \xff", 400), (b"origin: https://\xff", 403)])
async def test_refusal_with_surrogates_is_answered(path: str, header: bytes, status: int) -> None:
    async with serving(config=FrontendConfig(cors_origins=["https://a.example"])) as served:
        answered, headers, document = await post(served, path, header)
    assert (answered, document["error"]["message"] != "") == (status, True)
    assert headers["request-id"].startswith("req_")
