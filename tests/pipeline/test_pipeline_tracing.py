"""The trace of a turn through real processes, as an OTLP receiver gets it: each stage once, in
order, under the right parent."""

import asyncio
import json
import secrets
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

from tests.kit.messages_client import body, call, say
from tests.kit.nats import NatsServer
from tests.kit.otlp import Trace, receiving
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import eventually

OUTPUT = (
    "Sagacious.\n</think>\n\nVerbose.\n\n" + call("ls --obscure") + "\n" + call("date --arcane")
)
SECRETS = ("Sagacious", "Verbose", "arcane", "clandestine", "Runs a command", "sk-hidden")
"""Words of the prompt, of the answer, of arguments, tools and headers."""
HEADERS = {"x-api-key": "sk-hidden", "user-agent": "agent/7.7", "tracestate": "vendor=value"}
CLOCK_NS = 20_000_000
"""Two processes may be interrupted between an event and reading the clock."""


def is_complete(found: Trace) -> bool:
    return {"POST /v1/messages", "prepare", "place", "decode", "parse"} <= set(found.names)


async def use_rollout(http: aiohttp.ClientSession) -> str:
    """A rollout with a turn and its state; returns its id, which is a key."""
    async with http.post("/rollouts", json={}) as response:
        id = str((await response.json())["id"])
    for path in ("", "/samples", "/v1/models", "/nothing"):
        async with http.get(f"/rollouts/{id}{path}") as response:
            await response.read()
    async with http.post(f"/rollouts/{id}/v1/messages", json=body(say("Hm."))) as response:
        await response.read()
    return id


@pytest.mark.slow
async def test_a_turn_shows_every_stage_once(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path: Path
) -> None:
    trace = secrets.token_hex(16)
    headers = {**HEADERS, "traceparent": f"00-{trace}-{'b7' * 8}-01"}
    request = body("clandestine " + say(OUTPUT))
    with receiving() as receiver:
        export = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
        options = {"tracing": True, "otlp_endpoint": receiver.url}
        stack = Stack(make_nats(), demo_model, tmp_path, environment=export, **options)
        try:
            stack.start_all()
            async with aiohttp.ClientSession(stack.url, headers=headers) as http:
                response = await http.post("/v1/messages", json=request)
                await response.read()
            async with aiohttp.ClientSession(stack.url) as http:
                rollout = await use_rollout(http)
                await eventually(lambda: b"/rollouts/{id}/samples" in receiver.data)
            found = await asyncio.to_thread(receiver.wait, trace, is_complete)
        finally:
            stack.stop()
        for secret in (*SECRETS, rollout):
            assert secret.encode() not in receiver.data
    assert (response.status, response.headers["x-trace-id"]) == (200, trace)
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
    prepared = [step for step, _ in children["prepare"].events]
    assert prepared == ["strip", "ledger", "render", "encode"]
    assert {span.state for span in found.spans} == {"vendor=value"}
    for step, stage in (("place", "preprocessor"), ("decode", "worker"), ("parse", "parser")):
        assert children[step].resource["turnwire.stage"] == stage
    prompt = turn.attributes["gen_ai.usage.input_tokens"]
    assert prompt == children["prepare"].attributes["gen_ai.usage.input_tokens"] > 50
    assert [span.name for span in found.spans if span.failed] == []
    (frontend,) = (child for child in stack.children if child.stage == "frontend")
    (line,) = [json.loads(line) for line in frontend.text().splitlines() if trace in line]
    assert (line["event"], line["trace_id"]) == ("request", trace)
