"""Traces of real processes, as an OTLP receiver gets them: each stage once, in order, under the
right parent."""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

from tests.kit.messages_client import body, call, say
from tests.kit.nats import NatsServer
from tests.kit.otlp import Receiver, Trace, receiving
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

OUTPUT = (
    "Sagacious.\n</think>\n\nVerbose.\n\n" + call("ls --obscure") + "\n" + call("date --arcane")
)
SECRETS = ("Sagacious", "Verbose", "arcane", "clandestine", "Runs a command", "sk-hidden")
"""Words of the prompt, of the answer, of arguments, tools and headers."""
HEADERS = {"x-api-key": "sk-hidden", "user-agent": "agent/7.7", "tracestate": "vendor=value"}
STEPS = ["strip", "ledger", "render", "encode"]
CLOCK_NS = 20_000_000
"""Two processes may be interrupted between an event and reading the clock."""


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
        yield running.start_all()
    finally:
        running.stop()


def parent_of(trace: str, *, sampled: bool = True) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{'b7' * 8}-0{int(sampled)}"}


async def post(url: str, text: str, headers: dict[str, str]) -> str | None:
    """Sends a request that is answered. Returns its trace id."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/messages", json=body(text), headers=headers) as response,
    ):
        await response.read()
        assert response.status == 200
        return response.headers.get("x-trace-id")


async def ready(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/ready") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def test_a_turn_shows_every_stage_once(traced: Stack, receiver: Receiver) -> None:
    trace, before = secrets.token_hex(16), len(receiver.data)
    headers = {**HEADERS, **parent_of(trace)}
    assert await post(traced.url, "clandestine " + say(OUTPUT), headers) == trace

    def complete(found: Trace) -> bool:
        return {"POST /v1/messages", "prepare", "place", "decode", "parse"} <= set(found.names)

    found = await asyncio.to_thread(receiver.wait, trace, complete)
    (root,) = found.children(None)
    assert (root.name, root.parent, root.kind) == ("POST /v1/messages", "b7" * 8, 2)
    assert root.attributes["http.response.status_code"] == 200
    (turn,) = found.children(root)
    assert turn.name == f"chat {MODEL}"
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    steps = ["prepare", "place", "queue", "prefill", "decode", "parse"]
    blocks = ["reasoning", "text", "tool_use", "tool_use"]
    children = {span.name: span for span in found.children(turn)}
    assert sorted(span.name for span in found.children(turn)) == sorted([*steps, *blocks])
    for earlier, later in pairwise(children[step] for step in steps[:-1]):
        assert earlier.start <= later.start + CLOCK_NS, (earlier.name, later.name)
    assert [step for step, _ in children["prepare"].events] == STEPS
    assert {span.state for span in found.spans} == {"vendor=value"}
    for step, stage in (("place", "preprocessor"), ("decode", "worker"), ("parse", "parser")):
        assert children[step].resource["turnwire.stage"] == stage
    prompt = turn.attributes["gen_ai.usage.input_tokens"]
    assert prompt == children["prepare"].attributes["gen_ai.usage.input_tokens"] > 50
    assert not any(span.failed for span in found.spans)
    for secret in SECRETS:
        assert secret.encode() not in receiver.data[before:]
    log = traced.of("frontend")[0].text().splitlines()
    (line,) = [json.loads(line) for line in log if trace in line]
    assert (line["event"], line["trace_id"]) == ("request", trace)


async def test_an_unsampled_request_leaves_no_spans(traced: Stack, receiver: Receiver) -> None:
    none = traced.start("frontend", trace_ratio=0)
    await until(lambda: ready(none.url))
    off, on, asked = (secrets.token_hex(16) for _ in range(3))
    known = {span.trace for span in receiver.spans}
    assert await post(traced.url, say(OUTPUT), parent_of(off, sampled=False)) is None
    assert await post(none.url, say(OUTPUT), {}) is None
    # Each process exports in order: what came before these would be there, too.
    assert await post(traced.url, say(OUTPUT), parent_of(on)) == on
    assert await post(none.url, say(OUTPUT), parent_of(asked)) == asked
    last = {"POST /v1/messages", "decode", "parse", "place"}
    for trace in (on, asked):
        await asyncio.to_thread(receiver.wait, trace, lambda found: last <= set(found.names))
    assert {span.trace for span in receiver.spans} - known == {on, asked}
