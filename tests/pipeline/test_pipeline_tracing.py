"""Traces of real processes, as an OTLP receiver gets them: each stage once, in order, under the
right parent."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kit.messages_client import TOOLS, Client, body, call, say
from tests.kit.nats import NatsServer, free_port
from tests.kit.otlp import ReceivedSpan, Receiver, Trace, receiving
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import eventually, until

pytestmark = pytest.mark.slow

OUTPUT = (
    "Sagacious.\n</think>\n\nVerbose.\n\n" + call("ls --obscure") + "\n" + call("date --arcane")
)
SECRETS = ("Sagacious", "Verbose", "arcane", "clandestine", "Runs a command", "sk-hidden")
"""Words of the prompt, of the answer, of arguments, tools and headers."""
HEADERS = {"x-api-key": "sk-hidden", "user-agent": "agent/7.7", "tracestate": "vendor=value"}
STEPS = ["strip", "ledger", "render", "encode"]
WORKER = ["queue", "prefill", "decode"]
CLOCK_NS = 20_000_000
"""Two processes may be interrupted between an event and reading the clock."""
COUNTS = {"worker": 1, "parser": 1, "preprocessor": 1}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


@pytest.fixture(scope="module")
def traced(
    make_nats: Callable[[], NatsServer],
    demo_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    receiver: Receiver,
) -> Iterator[Stack]:
    running = Stack(
        make_nats(),
        demo_model,
        tmp_path_factory.mktemp("traced"),
        environment={"OTEL_BSP_SCHEDULE_DELAY": "50"},
        beat_interval_s=0.25,
        dead_after_s=1.5,
        tracing=True,
        otlp_endpoint=receiver.url,
    )
    try:
        yield running.start_all(COUNTS)
    finally:
        running.stop()


@pytest.fixture
async def client(traced: Stack) -> AsyncIterator[Client]:
    traced.restore(COUNTS)
    connected = Client(traced.url)
    yield connected
    await connected.http.close()


def parent_of(trace: str, *, sampled: bool = True) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{'b7' * 8}-0{int(sampled)}"}


def requests(text: str) -> dict[str, dict[str, Any]]:
    """One request in the form of each API."""
    (tool,) = TOOLS
    schema = tool["input_schema"]
    function = {"name": tool["name"], "description": tool["description"], "parameters": schema}
    chat = {
        "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function", "function": function}],
    }
    return {
        "/v1/messages": body(text),
        "/v1/chat/completions": {"model": MODEL, "stream": True, **chat},
        "/v1/responses": {
            "model": MODEL,
            "stream": True,
            "input": text,
            "tools": [{"type": "function", **function}],
        },
    }


async def post(
    url: str, request: dict[str, Any], headers: dict[str, str], path: str = "/v1/messages"
) -> tuple[int, str | None]:
    """Returns the status and the trace id of a request that was answered."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + path, json=request, headers=headers) as response,
    ):
        await response.read()
        return response.status, response.headers.get("x-trace-id")


def in_order(spans: list[ReceivedSpan]) -> None:
    for one, other in pairwise(spans):
        assert one.start <= other.start + CLOCK_NS, (one.name, other.name)


async def ready(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/ready") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
async def test_a_turn_shows_every_stage_once(
    traced: Stack, receiver: Receiver, client: Client, path: str
) -> None:
    trace = secrets.token_hex(16)
    request = requests("clandestine " + say(OUTPUT))[path]
    before = len(receiver.data)
    status, shown = await post(client.url, request, {**HEADERS, **parent_of(trace)}, path)
    assert (status, shown) == (200, trace)

    def complete(found: Trace) -> bool:
        return {f"POST {path}", "prepare", "place", "decode", "parse"} <= set(found.names)

    found = await asyncio.to_thread(receiver.wait, trace, complete)
    (root,) = found.children(None)
    assert (root.name, root.parent, root.kind) == (f"POST {path}", "b7" * 8, 2)
    (turn,) = found.children(root)
    blocks = ["reasoning", "text", "tool_use", "tool_use"]
    children = {span.name: span for span in found.children(turn)}
    assert sorted(span.name for span in found.children(turn)) == sorted(
        ["prepare", "place", *WORKER, "parse", *blocks]
    )
    in_order([children[name] for name in ("prepare", "place", *WORKER)])
    in_order([children["place"], children["parse"]])
    assert [step for step, _ in children["prepare"].events] == STEPS
    assert {span.state for span in found.spans} == {"vendor=value"}
    stages = {
        name: children[name].resource["turnwire.stage"] for name in ("place", "decode", "parse")
    }
    assert stages == {"place": "preprocessor", "decode": "worker", "parse": "parser"}
    assert root.attributes["http.route"] == path
    assert root.attributes["http.response.status_code"] == 200
    assert turn.name == f"chat {MODEL}"
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    prompt = turn.attributes["gen_ai.usage.input_tokens"]
    assert prompt == children["prepare"].attributes["gen_ai.usage.input_tokens"] > 50
    assert not any(span.failed for span in found.spans)
    for secret in SECRETS:
        assert secret.encode() not in receiver.data[before:]
    log = traced.of("frontend")[0].text().splitlines()
    (line,) = [json.loads(line) for line in log if trace in line]
    assert (line["event"], line["trace_id"]) == ("request", trace)


async def test_an_unsampled_request_leaves_no_spans(
    traced: Stack, receiver: Receiver, client: Client
) -> None:
    none = traced.start("frontend", trace_ratio=0)
    await until(lambda: ready(none.url))
    off, on, asked = (secrets.token_hex(16) for _ in range(3))
    known = {span.trace for span in receiver.spans}
    request = body(say(OUTPUT))
    assert await post(client.url, request, parent_of(off, sampled=False)) == (200, None)
    for _ in range(3):
        assert await post(none.url, request, {}) == (200, None)
    # Each process exports in order: what came before these would be there, too.
    assert await post(client.url, request, parent_of(on)) == (200, on)
    assert await post(none.url, request, parent_of(asked)) == (200, asked)
    last = {"POST /v1/messages", "decode", "parse", "place"}
    for trace in (on, asked):
        await asyncio.to_thread(receiver.wait, trace, lambda found: last <= set(found.names))
    assert {span.trace for span in receiver.spans} - known == {on, asked}


async def test_a_receiver_that_is_down_disturbs_nothing(traced: Stack, client: Client) -> None:
    alone = traced.start("frontend", otlp_endpoint=f"http://127.0.0.1:{free_port()}")
    await until(lambda: ready(alone.url))
    request = body(say(OUTPUT))
    for _ in range(20):
        status, shown = await post(alone.url, request, {})
        assert status == 200
        assert shown is not None
    await eventually(lambda: "tracing.problem" in alone.text())
    for _ in range(20):
        assert (await post(alone.url, request, {}))[0] == 200
    alone.terminate()
    assert await asyncio.to_thread(alone.wait) == 0
    assert alone.text().count("tracing.problem") == 1
    assert "opentelemetry" not in alone.text()
