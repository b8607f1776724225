"""An upgrade to a release with another protocol: the two do not use each other, report each other
once, and nothing hangs."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.messages_client import Client, body, say
from tests.kit.nats import NatsServer
from tests.kit.stack import Child, Stack
from tests.kit.waiting import eventually
from tests.pipeline.other_protocol import PREFIX

pytestmark = pytest.mark.slow  # eight processes; the simulation starts others, too

INNER = ("parser", "worker", "preprocessor")
SHORT = body(say("Hm.\n</think>\n\nYes."))
LONG = body(say("Hm.\n</think>\n\n[[delay 20]][[fill 150]]"))
YES = ("text", "Yes.")
MODULE = "tests.pipeline.other_protocol"


def reported(child: Child) -> list[str]:
    """The names of the processes that a process has reported."""
    lines = (
        json.loads(line) for line in child.text().splitlines() if "process.other_protocol" in line
    )
    return sorted(line["peer"].rpartition("-")[0] for line in lines)


async def refused(client: Client) -> str:
    """The message of a 503 with `Retry-After`."""
    async with client.http.post(f"{client.url}/v1/messages", json=SHORT) as response:
        assert response.status == 503, await response.text()
        assert int(response.headers["retry-after"]) > 0
        message: str = (await response.json())["error"]["message"]
        return message


async def test_upgrade_to_another_protocol_loses_no_turn(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path: Path
) -> None:
    stack = Stack(make_nats(), demo_model, tmp_path, beat_interval_s=0.25, recovery_s=1)
    clients: list[Client] = []
    try:
        await asyncio.to_thread(stack.start_all, frontend={"wait_s": 5})
        old = list(stack.children)
        older = Client(stack.url)
        clients.append(older)
        new = [stack.start("frontend", module=MODULE)]
        newer = Client(new[0].url)
        clients.append(newer)
        await eventually(lambda: "process.ready" in new[0].text())
        for stage in INNER:
            assert "another protocol" in await refused(newer)
            new.append(stack.start(stage, module=MODULE))
            await eventually(lambda: new[-1].name in reported(old[0]))
            answers = await asyncio.gather(*(older.stream(SHORT) for _ in range(8)))
            assert all(answer.contents[-1] == YES for answer in answers)
        await newer.ready()
        expected = (await newer.stream(LONG)).contents

        begun = asyncio.Event()
        running = asyncio.create_task(older.stream(LONG, begun=begun))
        await asyncio.wait_for(begun.wait(), 60)
        for child in old:
            if child.stage != "frontend":
                child.terminate()
        assert (await newer.stream(SHORT)).contents[-1] == YES
        assert (await running).contents == expected
        for child in old:
            if child.stage != "frontend":
                assert child.wait() == 0
        await refused(older)
        assert (await newer.stream(SHORT)).contents[-1] == YES
        for child in old:
            assert set(reported(child)) <= {process.name for process in new}
            assert len(set(reported(child))) == len(reported(child))
        assert reported(old[-1]) == sorted(child.name for child in new)
        for child in new:
            names = {process.name for process in old}
            assert set(reported(child)) <= names, "each at most once"
            assert len(set(reported(child))) == len(reported(child))
        assert PREFIX in old[-1].text()
    finally:
        for client in clients:
            await client.http.close()
        stack.stop()
