"""A lost bus is shown, and that of the next `turnwire up` on the same state directory followed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import nats
import pytest
from msgspec.structs import replace

from schemas import subjects
from schemas.requests import TurnRequest
from services.cli.instances import Instance, announce
from services.runtime.config.service import BusConfig
from tests.kit.conversations import conversation
from tests.kit.nats import NatsServer
from tests.kit.waiting import eventually
from turnwire_tools.inspector.bus_follower import BusFollower, TurnSource
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.images import InspectorImages


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


async def send(server: NatsServer, turn: str) -> None:
    """The request of a turn, as a frontend sends it."""
    bus = await nats.connect(server.url)
    request = TurnRequest(turn, "frontend-1", conversation())
    await bus.publish(subjects.turn("m", "preprocessor-1"), msgspec.json.encode(request))
    await bus.close()


@asynccontextmanager
async def following(
    server: NatsServer, env: dict[str, str], fold: Fold, source: TurnSource, passed: list[Instance]
) -> AsyncIterator[None]:
    config = BusConfig(nats_url=server.url)
    images = InspectorImages()
    async with BusFollower(config, env, fold, images, source, on_next=passed.append) as follower:
        task = asyncio.create_task(follower.stay())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_next_up_of_a_state_directory_is_followed(
    nats: NatsServer, own_nats: NatsServer, env: dict[str, str], fold: Fold
) -> None:
    first = Instance(
        url="http://h:1", urls=[], model="m", pid=7, nats_url=own_nats.url, state_dir="/a"
    )
    other = replace(first, pid=8, nats_url="nats://127.0.0.1:1", state_dir="/b")
    later = replace(first, pid=9, nats_url=nats.url)
    source = TurnSource("")
    passed: list[Instance] = []
    with ExitStack() as running:
        running.enter_context(announce(first, env))
        async with following(own_nats, env, fold, source, passed):
            await send(own_nats, "one")
            await eventually(lambda: "one" in fold.turns)
            own_nats.kill()
            await eventually(lambda: source.lost_at is not None)

            running.close()
            running.enter_context(announce(later, env))
            running.enter_context(announce(other, env))
            await eventually(lambda: source.lost_at is None)
            assert source.name == nats.url
            await send(nats, "two")
            await eventually(lambda: "two" in fold.turns)
    assert passed == [later]


async def test_the_same_bus_is_followed_again_when_it_is_back(
    own_nats: NatsServer, env: dict[str, str], fold: Fold, capsys: pytest.CaptureFixture[str]
) -> None:
    source = TurnSource("")
    async with following(own_nats, env, fold, source, []):
        own_nats.kill()
        await eventually(lambda: source.lost_at is not None)
        own_nats.start()
        await eventually(lambda: source.lost_at is None)
        await send(own_nats, "one")
        await eventually(lambda: "one" in fold.turns)
    assert capsys.readouterr().err.count('"bus.disconnected"') == 1
