"""Header values that are not UTF-8: any byte may stand there (RFC 9110, 5.5), and none of them may
do harm."""

import asyncio
import json
from random import Random
from typing import Any

import msgspec
import pytest

from services.runtime.config import FrontendConfig
from tests.kit.frontend import MODEL, Served, serving

CHAT = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": CHAT,
    "/v1/chat/completions": CHAT,
}


async def post(
    served: Served, path: str, header: bytes
) -> tuple[int, dict[str, str], dict[str, Any]]:
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
@pytest.mark.parametrize(
    "name", ["user-agent", "x-session-affinity", "x-claude-code-session-id", "x-request-id"]
)
async def test_header_values_may_have_any_bytes(path: str, name: str) -> None:
    async with serving() as served:
        status, headers, document = await post(
            served, path, f"{name}: ".encode() + b"a\xff \xc3\xa9 \xed\xa0\x80b"
        )
        conversation = served.gateway.turns[0].conversation
        line = served.lines[-1]
    assert status == 200, document
    assert headers["x-request-id"] == headers["request-id"]
    msgspec.msgpack.encode(conversation)
    msgspec.json.encode(line, enc_hook=str)
    if name == "user-agent":
        assert conversation.client.user_agent == "a? é ???b"


PIECES = (
    b"a",
    b"?",
    b"\xff",
    b"\xfe",
    b"\xc3\xa9",
    b"\xe9",
    b"\xed\xb3\xbf",
    b"\xef\xbf\xbd",
    b"\\xff",
    b"\xc2\xff",
    b"\xc3\xbf",
    b"#",
)
"""Parts of header values: ASCII, bytes that are not UTF-8, and what these look like in other
encodings."""


async def test_different_bytes_of_an_id_are_different_sessions() -> None:
    random = Random(1)
    sent = {b"".join(random.choices(PIECES, k=random.randint(1, 3))) for _ in range(150)}
    sent |= {one.decode("latin-1").encode() for one in sent}
    async with serving() as served:
        for value in sent:
            status, _, document = await post(served, "/v1/responses", b"x-session-id: " + value)
            assert status == 200, document
        sessions = [turn.conversation.client.session for turn in served.gateway.turns]
        assert (await post(served, "/v1/responses", b"x-session-id: \0\xc3\xbf"))[0] == 400, (
            "as such bytes are marked"
        )
    assert len({*sessions}) == len(sent)
    assert all(session is not None and session.isprintable() for session in sessions)


async def test_empty_header_before_a_filled_one_does_not_count() -> None:
    async with serving() as served:
        assert (await post(served, "/v1/responses", b"x-session-id:\r\nX-Session-Id: s"))[0] == 200
        assert served.gateway.turns[0].conversation.client.session == "s"


@pytest.mark.parametrize(
    "name", ["host", "accept", "content-type", "cookie", "traceparent", "authorization", "range"]
)
async def test_any_bytes_in_other_headers_do_no_harm(name: str) -> None:
    async with serving() as served:
        status, _, document = await post(
            served, "/v1/responses", f"{name}: ".encode() + b"a\xff=\xfe"
        )
    assert status < 500, document


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("header", "status"), [(b"content-encoding: \xff", 400), (b"origin: https://\xff", 403)]
)
async def test_refusal_with_surrogates_is_answered(path: str, header: bytes, status: int) -> None:
    async with serving(config=FrontendConfig(cors_origins=["https://a.example"])) as served:
        answered, headers, document = await post(served, path, header)
    assert (answered, document["error"]["message"] != "") == (status, True)
    assert headers["request-id"].startswith("req_")
