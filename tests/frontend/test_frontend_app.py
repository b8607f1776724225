"""Tests what all requests share: ids, routes, the log line, the metrics."""

import asyncio
from unittest.mock import MagicMock

import pytest

from schemas.errors import OUT_OF_MEMORY, TooLarge
from services.frontend.apis.messages.render import MessagesStream
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import CHAT, MESSAGES, MODEL, messages
from tests.kit.events import USAGE, Step, call, finish, reasoning, text
from tests.kit.every import Cases
from tests.kit.frontend import FakeGateway, Served, serving

ASK = messages(max_tokens=99)
STREAM = ASK | {"stream": True}


async def test_out_of_memory_is_answered_with_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessagesStream, "api_events", MagicMock(side_effect=MemoryError))
    async with serving(FakeGateway(lambda: [text(0, "so"), [finish(1)]])) as served:
        reply = await served.ask()
        assert reply.error == (503, "overloaded_error", OUT_OF_MEMORY.message)
        assert reply.headers["retry-after"] == "1"
        body = (await served.ask(stream=True)).text
    assert body.count("event: error") == 1
    assert "overloaded_error" in body


UNKNOWN = (
    ("GET", "/v1/nothing", 404, "Invalid URL (GET /v1/nothing)"),
    ("POST", "/v1/messages/batches", 404, "Not found"),
    ("GET", "/v1/messages", 405, "Method GET is not allowed here"),
    ("GET", "/v1/models/nobody", 404, f"model: nobody. Served models: {MODEL}"),
)


async def test_unknown_path_is_404(served: Served, cases: Cases) -> None:
    for method, path, status, message in UNKNOWN:
        with cases.case(method=method, path=path):
            kind = "not_found_error" if status == 404 else "invalid_request_error"
            reply = await served.send(method, path)
            assert reply.error == (status, kind, message)
            assert ("Allow" in reply.headers) is (status == 405)
    reply = await served.post("/v1/embeddings", {})
    message = "Invalid URL (POST /v1/embeddings)"
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    assert (reply.status, reply.json) == (404, {"error": error})


OPENAI_URL = "The base URL of OpenAI's clients is the server's address with one /v1."
ANTHROPIC_URL = "The base URL of Anthropic's clients is the server's address, without /v1."
WRONG_BASE = (
    ("/v1/v1/messages", f"Not found. Did you mean /v1/messages? {ANTHROPIC_URL}"),
    ("/messages", f"Not found. Did you mean /v1/messages? {ANTHROPIC_URL}"),
    (
        "/chat/completions",
        f"Invalid URL (POST /chat/completions). Did you mean /v1/chat/completions? {OPENAI_URL}",
    ),
    (
        "/v1/v1/responses",
        f"Invalid URL (POST /v1/v1/responses). Did you mean /v1/responses? {OPENAI_URL}",
    ),
)


MISSPELLED = (
    ("/v1/message", "Not found. Did you mean /v1/messages?"),
    ("/v1/mesages", "Not found. Did you mean /v1/messages?"),
    ("/v1/Messages", "Not found. Did you mean /v1/messages?"),
    ("/v1/messages/", "Not found. Did you mean /v1/messages?"),
    ("/v1/messages/count_token", "Not found. Did you mean /v1/messages/count_tokens?"),
    ("/message", f"Not found. Did you mean /v1/messages? {ANTHROPIC_URL}"),
    (
        "/v1/chat/completion",
        "Invalid URL (POST /v1/chat/completion). Did you mean /v1/chat/completions?",
    ),
    ("/v1/completion", "Invalid URL (POST /v1/completion). Did you mean /v1/completions?"),
    ("/v1/response", "Invalid URL (POST /v1/response). Did you mean /v1/responses?"),
    (
        "/v1/v1/response",
        f"Invalid URL (POST /v1/v1/response). Did you mean /v1/responses? {OPENAI_URL}",
    ),
)


async def test_wrong_path_near_a_served_one_is_explained(served: Served, cases: Cases) -> None:
    for path, message in (*WRONG_BASE, *MISSPELLED):
        with cases.case(path=path):
            reply = await served.post(path, {})
            is_messages = "Not found" in message
            kind = "not_found_error" if is_messages else "invalid_request_error"
            assert reply.error == (404, kind, message)
            assert ("request_id" in reply.json) is is_messages
            assert ("param" in reply.json["error"]) is not is_messages
    assert "mean" not in (await served.post("/embeddings", {})).error[2], "it is not served"
    listed = await served.send("GET", "/models")
    assert (await served.get("/helth")).error[2].endswith("Did you mean /health?")
    assert "Did you mean /v1/models? Base URLs of OpenAI's clients end in /v1;" in listed.error[2]


async def test_stream_has_its_headers_and_ids(served: Served) -> None:
    response = await served.post("/v1/messages", STREAM, headers={"x-request-id": "mine"})
    assert response.status == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"] == "mine"
    turn = response.headers["request-id"].removeprefix("req_")
    assert f'"id":"msg_{turn}"' in response.text
    assert served.gateway.turns[0].id == turn


async def test_request_too_large_for_the_bus_is_refused_with_the_reason() -> None:
    details = {"size_bytes": 9, "limit_bytes": 8}
    reason = "The request has 9 bytes without the data of images and documents; the limit is 8."
    gateway = FakeGateway()
    gateway.refusal = TooLarge("message of 9 bytes is over the bus limit", details=details)
    async with serving(gateway) as served:
        for api in (CHAT, MESSAGES):
            reply = await served.post(api.path, api.body())
            assert (reply.status, reply.json["error"]["message"]) == (413, reason), api.name
            assert "details" not in reply.json["error"]


async def test_dispatch_is_opt_in(cases: Cases) -> None:
    steps: Step = [*reasoning(0, "so"), *call(1, "look", '{"at": 1}', call_id="c1"), finish(2)]
    for flag, header, sent in (
        (False, None, False),
        (False, "true", True),
        (True, None, True),
        (True, "0", False),
    ):
        headers = {} if header is None else {"x-turnwire-tool-dispatch": header}
        config = FrontendConfig(enable_streaming_tool_dispatch=flag)
        with cases.case(flag=flag, header=header):
            async with serving(FakeGateway(lambda: [steps]), config) as served:
                stream = (await served.post("/v1/messages", STREAM, headers=headers)).text
                assert stream.count("event: tool_call_dispatch") == sent


async def test_dropped_tools_and_the_alias_are_named(served: Served) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    tools = [search, {"type": "web_fetch_x\u00e9 y", "name": "f"}]
    reply = await served.post("/v1/messages", {**ASK, "model": "claude-alias", "tools": tools})
    assert (reply.status, reply.json["model"]) == (200, "claude-alias")
    assert served.gateway.turns[0].conversation.model == MODEL
    assert reply.headers["x-turnwire-dropped"] == "web_search_20250305,web_fetch_xy"
    assert served.lines[-1]["dropped"] == ["web_search_20250305", "web_fetch_xy"]


async def test_turn_is_logged_and_counted() -> None:
    gate = asyncio.Event()
    steps: list[Step] = [reasoning(0, "so"), gate, [*text(1, "hi"), finish(2)]]
    async with serving(FakeGateway(lambda: steps)) as served:
        who = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
        who["x-request-id"] = "mine"
        response = await served.http.post("/v1/messages", json=STREAM, headers=who)
        await response.content.readuntil(b"content_block_stop")
        gate.set()
        await response.text()
        await served.ask(model="nobody")
    turn, unknown = [line for line in served.lines if line["event"] == "request"]
    assert 0 <= turn["ttft"] <= turn["seconds"]
    assert (
        turn.items()
        >= {
            "outcome": "stop",
            "client_request": "mine",
            "model": MODEL,
            "session": "s/a",
            "parent": "s",
            "kind": "helper",
            "prompt_tokens": USAGE.prompt,
            "cached_tokens": USAGE.cached,
            "output_tokens": USAGE.output,
            "reasoning_tokens": USAGE.reasoning,
        }.items()
    )
    assert (unknown["status"], unknown["outcome"]) == (404, "not_found")

    def value(name: str, **labels: str) -> float | None:
        return served.registry.get_sample_value(f"turnwire_{name}", labels)

    assert value("requests_total", model=MODEL, dialect="messages", outcome="stop") == 1
    for name, wanted in {
        "requests_running": 0,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": USAGE.output - 1,
        "generation_tokens_total": USAGE.output,
        "prefix_cache_hits_tokens_total": USAGE.cached,
    }.items():
        assert value(name, model=MODEL) == wanted, name


async def test_probes_report_liveness_and_readiness(served: Served) -> None:
    for path, status in (("/live", 503), ("/ready", 503), ("/health", 503), ("/metrics", 200)):
        served.gateway.ready = True
        assert (await served.get(path)).status == 200
        served.gateway.ready = False
        assert (await served.get(path)).status == status, path
    # The first requests of clients.
    for method, path in (("HEAD", "/"), ("GET", "/api/hello"), ("GET", "/version")):
        assert (await served.send(method, path)).status == 200, path
