"""The choice of a preprocessor for a turn: the least busy one, or the one that made an earlier
prompt."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from schemas.control import Heartbeat, ModelCard
from services.frontend.gateway.preprocessor_client import PREFERENCE, PreprocessorClient
from services.runtime.config.frontend import FrontendConfig
from services.runtime.presence.registry import ProcessRegistry
from tests.kit.process import FakeProcess


@asynccontextmanager
async def preparing(
    turns: Mapping[str, int], ages: Mapping[str, float]
) -> AsyncIterator[PreprocessorClient]:
    """A client with this number of turns at each preprocessor, none of which answers. `ages`: of
    their last heartbeats, in seconds."""
    process: Any = FakeProcess()
    process.registry = ProcessRegistry(dead_after_s=1e6)
    now = asyncio.get_running_loop().time()
    for name, age in ages.items():
        beat = Heartbeat("preprocessor", name, models=[ModelCard("m")])
        process.registry.receive(beat, now - age)
    process.bus = SimpleNamespace(ask=lambda *_: lambda: None)
    client = PreprocessorClient(process, FrontendConfig())
    waiting = []
    for name, count in turns.items():
        turn: Any = SimpleNamespace(
            attempt=SimpleNamespace(preprocessor=name),
            card=SimpleNamespace(name="m"),
            request=lambda frontend: {},
            request_sent=asyncio.get_running_loop().create_future,
            held_s=0.0,
        )
        waiting += [asyncio.create_task(client.send_attempt(turn)) for _ in range(count)]
    await asyncio.sleep(0)
    try:
        yield client
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_preprocessor_of_the_compared_prompt_is_chosen_unless_it_is_gone_or_full() -> None:
    """However many turns it prepares below that, as with 250 sessions on few preprocessors."""
    busy = {"a": 3, "b": 39, "c": 5}
    ages = dict.fromkeys(busy, 0.1)
    async with preparing(busy, ages) as client:
        assert client.choose("m", [], "b") == "b"
        assert client.choose("m", ["b"], "b") == "a"
        assert client.choose("m", [], "z") == "a"
    # Those turns are over.
    assert {client.choose("m", []) for _ in range(100)} == {*busy}
    async with preparing({**busy, "b": 3 + PREFERENCE + 1}, ages) as client:
        assert client.choose("m", [], "b") == "a"
    async with preparing(busy, {**ages, "b": 1000.0}) as client:
        assert client.choose("m", [], "b") == "a"
