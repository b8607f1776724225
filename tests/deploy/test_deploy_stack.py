"""The four services as users of the bus: turns, a cancellation and a death work with the deployed
permissions, and forged heartbeats change nothing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from deploy.audit import Audit
from schemas import subjects
from schemas.control import Heartbeat
from tests.deploy.deployed import DeployedNats, stop, users
from tests.kit.messages_client import Client, body, call, say
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import eventually


@pytest.fixture(scope="module")
def deployed(
    nats_binary: str, demo_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[DeployedNats, Stack]]:
    nats = DeployedNats(nats_binary, tmp_path_factory.mktemp("nats"))
    stack = Stack(nats, demo_dir, tmp_path_factory.mktemp("stack"))
    try:
        yield nats, stack.start_all({"parser": 2}, **users(nats, worker={"token_delay_ms": 5}))
    finally:
        stop(nats, stack)


@pytest.mark.slow
async def test_services_are_refused_nothing_that_they_need(
    deployed: tuple[DeployedNats, Stack],
) -> None:
    nats, stack = deployed
    client = Client(stack.url)
    try:
        answer = await client.stream(body(say(f"Thinking.</think>Text.{call('ls')}")))
        assert answer.stop_reason == "tool_use"
        for path, request in (
            ("/v1/messages/count_tokens", body("hello")),
            ("/v1/tokenize", {"prompt": "hello"}),
        ):
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
    assert nats.violations() == []
    for child in stack.children:
        assert "permissions violation" not in child.text()


async def only(stack: Stack) -> set[str]:
    """The ids of the parsers that live, once the frontend counts no others."""
    names = {parser.name for parser in stack.of("parser")}

    def known() -> set[str]:
        return {peer["id"] for peer in stack.health()["stages"]["parser"]}

    await eventually(lambda: {id.rpartition("-")[0] for id in known()} == names)
    return known()


@pytest.mark.slow
async def test_forged_heartbeats_have_no_effect_on_requests(
    deployed: tuple[DeployedNats, Stack],
) -> None:
    nats, stack = deployed
    real = await only(stack)
    client = Client(stack.url)
    try:
        turns = [
            asyncio.create_task(client.stream(body(say("Thinking.</think>" + "word " * 200))))
            for _ in range(8)
        ]
        async with Audit(nats.url, nats.secrets).user("parser") as forger:
            for number in range(2000):
                forged = Heartbeat("parser", f"forged-{number}", leaving=number % 2 == 0)
                await forger.client.publish(
                    subjects.heartbeat("parser", forged.id), msgspec.json.encode(forged)
                )
            for id in real:
                gone = Heartbeat("parser", id, leaving=True)
                await forger.client.publish(
                    subjects.heartbeat("parser", id), msgspec.json.encode(gone)
                )
            assert await forger.refused() == set()
        for _ in range(20):
            assert (await client.post("/v1/messages", body(say("Hm.</think>Hi."), stream=False)))[
                0
            ] == 200
        assert [(await turn).stop_reason for turn in turns] == ["end_turn"] * 8
        async with client.http.get(f"{stack.url}/metrics") as response:
            metrics = await response.text()
    finally:
        await client.http.close()
    assert f'turnwire_heartbeats_refused_total{{stage="frontend"}} {2000 + len(real)}.0' in metrics
    assert await only(stack) == real
    for child in (*stack.of("frontend"), *stack.of("worker")):
        assert 1 <= child.text().count("process.heartbeat_refused") <= 3


@pytest.mark.slow
async def test_the_audit_finds_nothing_while_the_pipeline_serves(
    deployed: tuple[DeployedNats, Stack],
) -> None:
    nats, stack = deployed
    client = Client(stack.url)
    try:
        turns = [
            asyncio.create_task(client.stream(body(say("Thinking.</think>" + "word " * 600))))
            for _ in range(8)
        ]
        assert await Audit(nats.url, nats.secrets).run() == []
        assert [(await turn).stop_reason for turn in turns] == ["end_turn"] * 8
    finally:
        await client.http.close()
