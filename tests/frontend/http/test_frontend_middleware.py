"""The edge as clients meet it: rights and limits of keys, sizes of conversations, ids in answers."""

import asyncio
import re
from pathlib import Path
from typing import Any

from schemas.control import ModelCard
from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import Failed
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import (
    MODEL,
    USER,
    assistant,
    chat,
    messages,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.events import Step, finish, text
from tests.kit.every import Cases
from tests.kit.frontend import CARD, KEY, FakeGateway, guarded, serving
from tests.kit.waiting import eventually


async def test_stream_counts_as_open_until_it_ends(tmp_path: Path) -> None:
    gate = asyncio.Event()
    gateway = FakeGateway(lambda: [text(0, "so"), gate, [finish(1)]])
    async with serving(gateway, guarded(tmp_path, "concurrency=1"), headers=KEY) as served:
        first = await served.http.post("/v1/messages", json=messages(stream=True))
        assert first.status == 200
        assert served.callers.open_requests == {"alpha": 1}
        second = await served.ask(stream=True)
        assert second.headers["retry-after"] == "1"
        status, kind, message = second.error
        assert (status, kind) == (429, "rate_limit_error")
        assert "1 concurrent requests" in message
        assert (await served.post("/v1/messages/count_tokens", chat())).status == 200
        gate.set()
        await first.read()
        assert served.none_open()
        assert (await served.ask()).status == 200
    assert len(gateway.turns) == 2


async def test_every_kind_of_end_frees_the_place(tmp_path: Path) -> None:
    """A turn that finishes, one that fails, one whose client leaves, and a refusal."""
    endings: list[list[Step]] = [
        [[*text(0, "hello"), finish(1)]],
        [[*text(0, "half"), Failed(ErrorInfo(ErrorKind.ENGINE, "engine died"))]],
        [text(0, "so"), asyncio.Event()],
    ]
    gateway = FakeGateway(lambda: endings[len(gateway.turns) % 3])
    async with serving(gateway, guarded(tmp_path, "concurrency=64"), headers=KEY) as served:
        for _ in range(6):
            async with served.http.post("/v1/messages", json=messages(stream=True)) as response:
                async for piece in response.content.iter_any():
                    if b"text_delta" in piece:
                        break  # leaves the block, and so the connection, before the end
        assert (await served.ask(tools="none")).status == 400
        await eventually(served.none_open)
        assert served.callers.open_requests == {"alpha": 0}


async def test_requests_per_minute_are_limited_and_in_headers(tmp_path: Path) -> None:
    config = guarded(tmp_path, "rpm=2", key_tokens_per_minute=100_000)
    async with serving(config=config, headers=KEY) as served:
        for left in ("1", "0"):
            headers = (await served.ask(stream=True)).headers
            assert headers["anthropic-ratelimit-requests-limit"] == "2"
            assert headers["anthropic-ratelimit-requests-remaining"] == left
            assert headers["anthropic-ratelimit-tokens-limit"] == "100000"
        refused = await served.ask()
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.error[:2] == (429, "rate_limit_error")
        openai = await served.post("/v1/responses", {})
        assert openai.headers["x-ratelimit-remaining-requests"] == "0"
        assert "anthropic-ratelimit-requests-limit" not in openai.headers
        models = await served.get("/v1/models")
        assert models.status == 200
        assert not [name for name in models.headers if "ratelimit" in name.lower()]


async def test_key_sets_models_and_priority(tmp_path: Path) -> None:
    gateway = FakeGateway(cards=[CARD, ModelCard("acme/other", max_model_len=9)])
    config = guarded(tmp_path, "models=acme/oth* priority=-5")
    async with serving(gateway, config, headers=KEY) as served:
        listed = (await served.get("/v1/models")).json
        assert [model["id"] for model in listed["data"]] == ["acme/other"]
        assert [model["slug"] for model in listed["models"]] == ["acme/other"]
        for path, body in (
            ("/v1/messages", messages()),
            ("/v1/messages", messages(stream=True, model="claude-alias")),
            ("/v1/messages/count_tokens", chat()),
            ("/v1/tokenize", {"model": MODEL, "prompt": "x"}),
            ("/v1/detokenize", {"model": MODEL, "tokens": [1]}),
        ):
            status, kind, message = (await served.post(path, body)).error
            assert (status, kind) == (403, "permission_error")
            assert message.startswith("Your API key may not use the model ")
        assert (await served.ask(model="acme/other", priority=99)).status == 200
    (turn,) = gateway.turns
    assert (turn.card.name, turn.conversation.hints.priority) == ("acme/other", -5)
    assert gateway.counted == []


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
SEEN = [assistant(tool_use()), user(tool_result(content=[IMAGE, IMAGE, IMAGE]))]
TOOLS = [tool(f"t{number}") for number in range(4)]
OVER: list[tuple[dict[str, Any], str]] = [
    ({"messages": [USER] * 11}, "The conversation has 11 messages; the maximum is 10."),
    ({"tools": TOOLS}, "The request has 4 tools; the maximum is 3."),
    ({"messages": [USER, *SEEN]}, "The request has 3 images and documents; the maximum is 2."),
]


async def test_conversation_over_a_limit_is_refused(cases: Cases) -> None:
    config = FrontendConfig(max_messages=10, max_tools=3, max_media=2)
    async with serving(config=config) as served:
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/tokenize"):
            for fields, message in OVER:
                with cases.case(path=path, message=message):
                    reply = await served.post(path, messages(**fields))
                    assert reply.error == (400, "invalid_request_error", message)
            fits = {"messages": [USER] * 10, "tools": TOOLS[1:]}
            with cases.case(path=path, message="within the limits"):
                assert (await served.post(path, messages(**fits))).status == 200


async def test_every_answer_has_ids_and_a_content_type(cases: Cases) -> None:
    async with serving() as served:
        for method, path, status in (
            ("GET", "/live", 200),
            ("GET", "/nothing", 404),
            ("PUT", "/v1/messages", 405),
            ("POST", "/v1/messages", 400),
        ):
            longest = "trace-1.2:3@x/y".ljust(128, "x")
            for id, echoed in ((longest, True), (longest + "x", False), ("a b", False)):
                with cases.case(method=method, path=path, id=id):
                    reply = await served.send(method, path, headers={"X-Request-Id": id})
                    assert reply.status == status
                    own = reply.headers["request-id"]
                    assert re.fullmatch(r"req_[0-9a-f]{24}", own)
                    assert reply.headers["x-request-id"] == (id if echoed else own)
                    assert reply.headers["server"] == "turnwire"
                    assert reply.headers["x-content-type-options"] == "nosniff"
                    assert reply.headers["cache-control"] in ("no-store", "private, no-cache")
