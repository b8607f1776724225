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
from tests.kit.messages_client import Client, body, say
from tests.kit.stack import Stack
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
