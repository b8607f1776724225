"""The four services as users of the bus: turns, a cancellation and a death work with the deployed permissions."""

import asyncio
from collections.abc import Iterator

import pytest

from services.cli.demo.model import build_demo_model
from tests.conftest import eventually
from tests.deploy.deployed import DeployedNats
from tests.pipeline.client import Client, body, call, say
from tests.pipeline.stack import MODEL, Stack


@pytest.fixture(scope="module")
def deployed(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DeployedNats, Stack]]:
    nats = DeployedNats(nats_binary, tmp_path_factory.mktemp("nats"))
    model = build_demo_model(tmp_path_factory.mktemp("model") / "turnwire-demo")
    stack = Stack(nats, model, tmp_path_factory.mktemp("stack"))
    users: dict[str, dict[str, object]] = {
        stage: {"nats_user": stage, "nats_password_file": nats.password_file(stage)}
        for stage in ("frontend", "preprocessor", "worker", "parser")
    }
    for stage in ("preprocessor", "parser"):
        users[stage]["seal_key_file"] = str(nats.secrets / stage / "seal.key")
    users["worker"]["token_delay_ms"] = 5
    try:
        yield nats, stack.start_all({"parser": 2}, **users)
    finally:
        stack.stop()
        nats.stop()


async def test_no_service_is_refused_what_it_needs(deployed: tuple[DeployedNats, Stack]) -> None:
    nats, stack = deployed
    client = Client(stack.url)
    try:
        answer = await client.stream(body(say(f"Thinking.</think>Text.{call('ls')}")))
        assert answer.stop_reason == "tool_use"
        for path, request in (("/v1/messages/count_tokens", body("hello")), ("/v1/tokenize", {"prompt": "hello"})):
            status, reply = await client.post(path, {"model": MODEL, **request})
            assert status == 200, reply
        long = body(say("Thinking.</think>" + "word " * 400))
        async with client.http.post(f"{stack.url}/v1/messages", json=long) as hung_up:
            await hung_up.content.readany()
        turns = [asyncio.create_task(client.stream(long)) for _ in range(4)]
        await eventually(lambda: "worker.cancelled" in stack.of("worker")[0].text())
        stack.of("parser")[0].kill()
        assert [(await turn).stop_reason for turn in turns] == ["end_turn"] * 4
    finally:
        await client.http.close()
    assert [line for line in nats.log.read_text().splitlines() if "Violation" in line] == []
    for child in stack.children:
        assert "permissions violation" not in child.text()
