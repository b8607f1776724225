"""A model that only its own `response_template` describes, through real processes, on all three
APIs."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.described_model import describe_model
from tests.kit.messages_client import Client, body, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Stack

pytestmark = pytest.mark.slow  # a stack of its own

CALL = '<act to="run_shell">{"cmd": "echo </act> é 東"}</act>'
OUTPUT = "  So I look,\nthen.\n</musing>\n\n Looking: \n\n" + CALL + "\n" + CALL
INPUT = {"cmd": "echo </act> é 東"}
THOUGHT, TEXT = "  So I look,\nthen.", " Looking: "
PARAMETERS = {"type": "object", "properties": {"cmd": {"type": "string"}}}


@pytest.fixture(scope="module")
def described(
    make_nats: Callable[[], NatsServer], demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    model = describe_model(
        shutil.copytree(demo_dir, tmp_path_factory.mktemp("described") / "turnwire-demo")
    )
    running = Stack(make_nats(), model, tmp_path_factory.mktemp("stack"))
    try:
        yield running.start_all({"parser": 2})
    finally:
        running.stop()


@pytest.fixture
async def client(described: Stack) -> AsyncIterator[Client]:
    connected = Client(described.url)
    yield connected
    await connected.http.close()


async def test_messages_stream_thoughts_text_and_calls(client: Client) -> None:
    thinking = {"type": "enabled", "budget_tokens": 2000}
    answer = await client.stream(body(say(OUTPUT), thinking=thinking))
    kinds = [kind for kind, _ in answer.contents]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert [value for _, value in answer.contents][2:] == [INPUT, INPUT]
    assert (answer.blocks[0]["thinking"].strip(), answer.blocks[1]["text"].strip()) == (
        THOUGHT.strip(),
        TEXT.strip(),
    )
    assert answer.stop_reason == "tool_use"


async def test_next_prompt_begins_with_the_tokens_of_the_turn(client: Client) -> None:
    """Although the output has blanks and an order that no template renders."""
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "run_shell", "parameters": PARAMETERS}},
    ]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": say(OUTPUT, "\n</musing>\n\nDone.")}
    ]
    request = {"model": "turnwire-demo", "tools": tools, "return_token_ids": True}
    _, first = await client.post("/v1/chat/completions", {**request, "messages": messages})
    message = first["choices"][0]["message"]
    messages.append({key: message[key] for key in ("role", "content", "tool_calls")})
    messages += [
        {"role": "tool", "tool_call_id": one["id"], "content": "ok"}
        for one in message["tool_calls"]
    ]
    _, second = await client.post("/v1/chat/completions", {**request, "messages": messages})
    written = [*first["prompt_token_ids"], *first["choices"][0]["token_ids"]]
    assert second["prompt_token_ids"][: len(written)] == written
    assert second["choices"][0]["message"]["content"] == "Done."


async def test_cut_call_and_stop_string(client: Client) -> None:
    cut = await client.stream(body(say("</musing>" + CALL), max_tokens=12))
    assert cut.stop_reason == "max_tokens"
    assert not any(event.name == "tool_call_dispatch" for event in cut.events)
    stopped = await client.stream(
        body(say("</musing>One stop here and more."), stop_sequences=["stop"])
    )
    assert (stopped.stop_sequence, stopped.contents) == ("stop", [("text", "One ")])
