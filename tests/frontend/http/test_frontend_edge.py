"""The edge as clients meet it: rights and limits of keys, sizes, slow senders, malformed HTTP."""

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import anthropic
import pytest
from aiohttp import ClientResponse, ClientSession
from structlog import get_logger

from schemas.control import ModelCard
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Failed
from services.runtime.config import FrontendConfig
from tests.kit.events import finish, text
from tests.kit.frontend import CARD, MODEL, FakeGateway, Served, serving
from tests.kit.waiting import eventually

ASK: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}
STREAM = {**ASK, "stream": True}
COUNT = {key: value for key, value in ASK.items() if key != "max_tokens"}
KEY = {"x-api-key": "alpha"}


def line(name: str, key: str, options: str = "") -> str:
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()} {options}\n"


def guarded(directory: Path, options: str = "", **config: Any) -> FrontendConfig:
    path = directory / "keys"
    path.write_text(line("alpha", "alpha", options))
    return FrontendConfig(api_keys_file=str(path), **config)


async def error_of(response: ClientResponse) -> tuple[int, str, str]:
    error = (await response.json())["error"]
    return response.status, error["type"], error["message"]


def none_open(served: Served) -> bool:
    return not any(served.callers.open_requests.values())


async def test_stream_counts_as_open_until_it_ends(tmp_path: Path) -> None:
    gate = asyncio.Event()
    gateway = FakeGateway(lambda: [text(0, "so"), gate, [finish(1)]])
    async with (
        serving(gateway, guarded(tmp_path, "concurrency=1")) as served,
        ClientSession(served.url) as http,
    ):
        first = await http.post("/v1/messages", json=STREAM, headers=KEY)
        assert first.status == 200
        assert served.callers.open_requests == {"alpha": 1}
        second = await http.post("/v1/messages", json=STREAM, headers=KEY)
        assert second.headers["retry-after"] == "1"
        status, kind, message = await error_of(second)
        assert (status, kind) == (429, "rate_limit_error")
        assert "1 concurrent requests" in message
        assert (await http.post("/v1/messages/count_tokens", json=COUNT, headers=KEY)).status == 200
        gate.set()
        await first.read()
        assert none_open(served)
        assert (await http.post("/v1/messages", json=ASK, headers=KEY)).status == 200
    assert len(gateway.turns) == 2


async def test_hangup_frees_the_place(tmp_path: Path) -> None:
    gateway = FakeGateway(lambda: [text(0, "so"), asyncio.Event()])
    async with (
        serving(gateway, guarded(tmp_path, "concurrency=1")) as served,
        ClientSession(served.url) as http,
    ):
        response = await http.post("/v1/messages", json=STREAM, headers=KEY)
        await response.content.readany()
        response.close()
        await eventually(lambda: none_open(served))
        assert gateway.turns[0].cancelled == ["hangup"]


async def test_hangup_in_prefill_frees_the_place(tmp_path: Path) -> None:
    gateway = FakeGateway()
    gateway.hold = asyncio.Event()
    async with serving(gateway, guarded(tmp_path, "concurrency=1")) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        body = json.dumps(ASK).encode()
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: alpha\r\nContent-Length: %d\r\n\r\n"
            % len(body)
        )
        writer.write(body)
        await gateway.opening.wait()
        assert served.callers.open_requests == {"alpha": 1}
        writer.close()
        await eventually(lambda: none_open(served))


async def test_every_kind_of_end_frees_the_place(tmp_path: Path) -> None:
    endings = iter(range(10_000))

    def steps() -> list[Any]:
        match next(endings) % 3:
            case 0:
                return [[*text(0, "hello"), finish(1)]]
            case 1:
                return [[*text(0, "half"), Failed(ErrorInfo(ErrorKind.ENGINE, "engine died"))]]
        return [text(0, "so"), asyncio.Event()]

    async with (
        serving(FakeGateway(steps), guarded(tmp_path, "concurrency=64")) as served,
        ClientSession() as http,
    ):

        async def one(number: int) -> None:
            body: Any = STREAM if number % 7 else {**STREAM, "tools": "none"}
            async with http.post(f"{served.url}/v1/messages", json=body, headers=KEY) as response:
                async for piece in response.content.iter_any():
                    if b"text_delta" in piece:
                        break  # leaves the block, and so the connection, before the end

        for start in range(0, 1000, 50):
            await asyncio.gather(*map(one, range(start, start + 50)))
        await eventually(lambda: none_open(served))
        assert served.callers.open_requests == {"alpha": 0}


async def test_requests_per_minute_are_limited_and_in_headers(tmp_path: Path) -> None:
    async with (
        serving(config=guarded(tmp_path, "rpm=2 tpm=100000")) as served,
        ClientSession(served.url) as http,
    ):
        for left in ("1", "0"):
            response = await http.post("/v1/messages", json=STREAM, headers=KEY)
            assert response.headers["anthropic-ratelimit-requests-limit"] == "2"
            assert response.headers["anthropic-ratelimit-requests-remaining"] == left
            assert re.fullmatch(
                r"\d{4}-\d\d-\d\dT[\d:]{8}Z", response.headers["anthropic-ratelimit-requests-reset"]
            )
            assert response.headers["anthropic-ratelimit-tokens-limit"] == "100000"
            await response.read()
        response = await http.post("/v1/messages", json=ASK, headers=KEY)
        assert 28 <= int(response.headers["retry-after"]) <= 30
        status, kind, message = await error_of(response)
        assert (status, kind) == (429, "rate_limit_error")
        assert re.search(
            r"limit of 2 requests per minute .* try again in 2\d\.\ds\.$|30\.0s\.$", message
        )
        openai = await http.post("/v1/responses", json={}, headers=KEY)
        assert openai.headers["x-ratelimit-remaining-requests"] == "0"
        assert "anthropic-ratelimit-requests-limit" not in openai.headers
        models = await http.get("/v1/models", headers=KEY)
        assert models.status == 200
        assert not [name for name in models.headers if "ratelimit" in name.lower()]


async def test_tokens_per_minute_are_limited(tmp_path: Path) -> None:
    """The first turn costs 656 - 600 cached + 74 = 130 tokens."""
    async with (
        serving(config=guarded(tmp_path, "tpm=120")) as served,
        ClientSession(served.url) as http,
    ):
        await (await http.post("/v1/messages", json=ASK, headers=KEY)).read()
        response = await http.post("/v1/messages", json=ASK, headers=KEY)
        status, _, message = await error_of(response)
        assert status == 429
        assert "120 tokens per minute" in message
        assert int(response.headers["retry-after"]) in (5, 6)


async def test_default_limits_hold_without_keys() -> None:
    config = FrontendConfig(key_requests_per_minute=1)
    async with serving(config=config) as served, ClientSession(served.url) as http:
        assert (await http.post("/v1/messages", json=ASK)).status == 200
        assert (
            await http.post("/v1/messages", json=ASK, headers={"x-api-key": "any"})
        ).status == 429


async def test_default_limits_hold_for_keys_without_limits(tmp_path: Path) -> None:
    config = guarded(tmp_path, key_requests_per_minute=1)
    path = Path(config.api_keys_file or "")
    path.write_text(path.read_text() + line("beta", "beta", "rpm=none"))
    async with serving(config=config) as served, ClientSession(served.url) as http:
        for key, statuses in (("alpha", [200, 429]), ("beta", [200, 200, 200])):
            for status in statuses:
                assert (
                    await http.post("/v1/messages", json=ASK, headers={"x-api-key": key})
                ).status == status


async def test_anthropic_client_waits_and_retries(tmp_path: Path) -> None:
    async with serving(config=guarded(tmp_path, "rpm=60")) as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="alpha", max_retries=0)
        ask: Any = {
            "model": MODEL,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "hi"}],
        }
        refused: list[anthropic.RateLimitError] = []
        while not refused:
            answers = await asyncio.gather(
                *(client.messages.create(**ask) for _ in range(61)), return_exceptions=True
            )
            refused = [answer for answer in answers if isinstance(answer, anthropic.RateLimitError)]
        assert refused[0].response.headers["retry-after"] == "1"
        assert (await client.with_options(max_retries=2).messages.create(**ask)).content
        await client.close()


async def test_key_cannot_use_other_models(tmp_path: Path) -> None:
    other = ModelCard("acme/other", max_model_len=9)
    gateway = FakeGateway(cards=[CARD, other])
    async with (
        serving(gateway, guarded(tmp_path, "models=acme/oth*")) as served,
        ClientSession(served.url) as http,
    ):
        listed = await (await http.get("/v1/models", headers=KEY)).json()
        assert [model["id"] for model in listed["data"]] == ["acme/other"]
        assert [model["slug"] for model in listed["models"]] == ["acme/other"]
        refusals = [
            await http.post("/v1/messages", json=ASK, headers=KEY),
            await http.post("/v1/messages", json={**STREAM, "model": "claude-alias"}, headers=KEY),
            await http.post("/v1/messages/count_tokens", json=COUNT, headers=KEY),
            await http.post("/v1/tokenize", json={"model": MODEL, "prompt": "x"}, headers=KEY),
            await http.post("/v1/detokenize", json={"model": MODEL, "tokens": [1]}, headers=KEY),
        ]
        for response in refusals:
            status, kind, message = await error_of(response)
            assert (status, kind) == (403, "permission_error")
            assert message.startswith("Your API key may not use the model ")
        assert (
            await http.post("/v1/messages", json={**ASK, "model": "acme/other"}, headers=KEY)
        ).status == 200
    assert [turn.card.name for turn in gateway.turns] == ["acme/other"]
    assert gateway.counted == []


async def test_expired_key_is_refused(tmp_path: Path) -> None:
    async with (
        serving(config=guarded(tmp_path, "expires=2020-01-01")) as served,
        ClientSession(served.url) as http,
    ):
        status, kind, message = await error_of(
            await http.post("/v1/messages", json=ASK, headers=KEY)
        )
        assert (status, kind, message) == (401, "authentication_error", "This API key has expired.")


async def test_priority_of_the_key_overrides_the_request(tmp_path: Path) -> None:
    async with (
        serving(config=guarded(tmp_path, "priority=-5")) as served,
        ClientSession(served.url) as http,
    ):
        await http.post("/v1/messages", json={**ASK, "priority": 99}, headers=KEY)
    assert served.gateway.turns[0].conversation.hints.priority == -5


async def test_401_has_the_texts_of_openai(tmp_path: Path) -> None:
    async with serving(config=guarded(tmp_path)) as served, ClientSession(served.url) as http:
        for path in ("/v1/responses", "/v1/chat/completions", "/v1/completions"):
            for headers, message in (
                ({}, "You didn't provide an API key"),
                ({"x-api-key": "no"}, "Incorrect API key"),
            ):
                response = await http.post(path, json={}, headers=headers)
                assert response.status == 401
                error = (await response.json())["error"]
                assert (error["type"], error["code"]) == (
                    "invalid_request_error",
                    "invalid_api_key",
                )
                assert error["message"].startswith(message)


async def test_keys_come_and_go_while_requests_run(tmp_path: Path) -> None:
    gate = asyncio.Event()
    gateway = FakeGateway(lambda: [text(0, "so"), gate, [finish(1)]])
    config = guarded(tmp_path, "rpm=2")
    path = Path(config.api_keys_file or "")
    async with serving(gateway, config) as served, ClientSession(served.url) as http:
        stream = await http.post("/v1/messages", json=STREAM, headers=KEY)
        path.write_text(line("beta", "beta"))
        served.callers.reload(get_logger())
        assert (await http.get("/v1/models", headers=KEY)).status == 401
        assert (await http.get("/v1/models", headers={"x-api-key": "beta"})).status == 200
        gate.set()
        assert b"message_stop" in await stream.read()
        path.write_text(line("alpha", "alpha", "rpm=3"))
        served.callers.reload(get_logger())
        response = await http.post("/v1/messages", json=STREAM, headers=KEY)
        assert response.headers["anthropic-ratelimit-requests-remaining"] == "1"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


def tool(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "input_schema": schema}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
TURN = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"messages": [TURN] * 11}, "The conversation has 11 messages; the maximum is 10."),
        (
            {"tools": [tool(f"t{i}", {}) for i in range(4)]},
            "The request has 4 tools; the maximum is 3.",
        ),
        (
            {"tools": [tool("t", nested(7))]},
            "The schema of tool 't' is nested too deeply; the maximum is 6 levels.",
        ),
        (
            {"tools": [tool("t", nested(800))]},
            "The schema of tool 't' is nested too deeply; the maximum is 6 levels.",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": nested(7)}}},
            "The schema of the output format is nested too deeply; the maximum is 6 levels.",
        ),
        (
            {"chat_template_kwargs": {"a": nested(6)}},
            "chat_template_kwargs is nested too deeply; the maximum is 6 levels.",
        ),
        (
            {"messages": [{"role": "user", "content": [IMAGE, IMAGE, IMAGE]}]},
            "The request has 3 images and documents; the maximum is 2.",
        ),
    ],
    ids=["messages", "tools", "schema", "deep", "format", "kwargs", "images"],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize"])
async def test_conversation_over_a_limit_is_refused(
    ask: dict[str, Any], message: str, path: str
) -> None:
    config = FrontendConfig(max_messages=10, max_tools=3, max_media=2, max_nesting=6)
    async with serving(config=config) as served, ClientSession(served.url) as http:
        response = await http.post(path, json={**ASK, **ask})
        assert await error_of(response) == (400, "invalid_request_error", message)
        fits = {"messages": [TURN] * 10, "tools": [tool(f"t{i}", nested(6)) for i in range(3)]}
        assert (await http.post(path, json={**ASK, **fits})).status == 200


async def test_media_in_results_count() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [IMAGE, IMAGE]}
    messages = [
        TURN,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    async with (
        serving(config=FrontendConfig(max_media=1)) as served,
        ClientSession(served.url) as http,
    ):
        status, _, message = await error_of(
            await http.post("/v1/messages", json={**ASK, "messages": messages})
        )
        assert (status, message) == (
            400,
            "The request has 2 images and documents; the maximum is 1.",
        )


async def test_connection_without_a_head_is_closed() -> None:
    async with serving(config=FrontendConfig(head_timeout_s=0.2)) as served:
        for beginning in (b"", b"GET /live HTTP/1.1\r\nHost: localhost\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(beginning)
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()


async def test_connection_may_be_idle_after_a_request() -> None:
    async with serving(config=FrontendConfig(head_timeout_s=2.0)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        late, waiter = await asyncio.open_connection("127.0.0.1", served.port)
        for _ in range(2):
            writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(60):
                assert await late.read() == b""  # by now the time is over
        writer.close()
        waiter.close()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize"])
async def test_missing_body_is_a_408(path: str) -> None:
    async with serving(config=FrontendConfig(body_timeout_s=0.2)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
        writer.write(head.encode() + b'{"model":')
        async with asyncio.timeout(60):
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
            assert length is not None
            body = json.loads(await reader.readexactly(int(length[1])))
        assert answer.startswith("HTTP/1.1 408 ")
        assert body["error"]["message"] == "The request body did not arrive in time"
        assert body["request_id"] in answer
        writer.close()
        await eventually(lambda: none_open(served))


@pytest.mark.parametrize("nonsense", [b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"])
async def test_malformed_http_gets_an_error_in_our_form(nonsense: bytes) -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(nonsense)
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
    document = json.loads(body)
    assert head.split()[1] == "400"
    assert document["error"]["type"] == "invalid_request_error"
    assert document["error"]["message"].startswith("Malformed HTTP request: ")
    own = document["request_id"]
    assert re.fullmatch(r"req_[0-9a-f]{24}", own)
    for header in (
        f"request-id: {own}",
        f"x-request-id: {own}",
        "server: turnwire",
        "x-content-type-options: nosniff",
    ):
        assert header in head.lower()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/nothing"])
async def test_unknown_expect_is_refused_in_our_form(path: str) -> None:
    async with serving() as served, ClientSession(served.url) as http:
        response = await http.post(path, json=ASK, headers={"expect": "miracles"})
        assert response.status == 417
        document = await response.json()
        assert document["error"]["message"] == "Unknown Expect: miracles"
        assert (
            document["request_id"]
            == response.headers["request-id"]
            == response.headers["x-request-id"]
        )
        assert (await http.post("/v1/messages", json=ASK, expect100=True)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/live", 200),
        ("GET", "/nothing", 404),
        ("PUT", "/v1/messages", 405),
        ("POST", "/v1/messages", 400),
        ("GET", "/v1/models", 200),
        ("OPTIONS", "/v1/messages", 405),
    ],
)
async def test_every_answer_has_ids_and_a_content_type(method: str, path: str, status: int) -> None:
    async with serving() as served, ClientSession(served.url) as http:
        response = await http.request(method, path, headers={"x-request-id": "mine-1"})
        assert response.status == status
        assert re.fullmatch(r"req_[0-9a-f]{24}", response.headers["request-id"])
        assert response.headers["x-request-id"] == "mine-1"
        assert response.headers["server"] == "turnwire"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] in ("no-store", "private, no-cache")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages/batches"),
        ("GET", "/v1/messages/batches?limit=1"),
        ("GET", "/v1/messages/batches/b1"),
        ("DELETE", "/v1/messages/batches/b1"),
        ("POST", "/v1/messages/batches/b1/cancel"),
        ("GET", "/v1/messages/batches/b1/results"),
        ("POST", "/v1/files?beta=true"),
        ("GET", "/v1/files/f1/content?beta=true"),
        ("GET", "/v1/skills?beta=true"),
        ("POST", "/v1/skills/s1/versions?beta=true"),
        ("POST", "/v1/complete"),
    ],
)
async def test_unserved_paths_of_anthropic_are_404(method: str, path: str) -> None:
    async with serving() as served, ClientSession(served.url) as http:
        response = await http.request(method, path)
        document = await response.json()
        assert (response.status, document["type"]) == (404, "error")
        assert (document["error"]["type"], document["error"]["message"]) == (
            "not_found_error",
            "Not found",
        )
        assert document["request_id"] == response.headers["request-id"]


async def test_batches_are_refused_in_the_form_of_the_sdk() -> None:
    async with serving() as served:
        client = anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.create(requests=[])
        with pytest.raises(anthropic.NotFoundError):
            await client.beta.files.list()
        await client.close()
