"""What is read of TensorRT-LLM beside its answers: health, cache events, statistics."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from services.worker.engine import EngineDied
from services.worker.engines.trtllm import engine as trtllm
from services.worker.engines.trtllm import readings
from services.worker.engines.trtllm.engine import TrtllmEngine
from services.worker.engines.trtllm.readings import KvEventQueue
from services.worker.kv.events import BlocksStored, CacheCleared
from tests.kit.engines import PROMPT, request, run
from tests.kit.waiting import LIMIT_S, eventually
from tests.worker.trtllm.serving import BOTH, NEW, started


@NEW
async def test_a_health_check_that_hangs_is_death(
    fake_trtllm: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, seconds in (
        (readings, "HEALTH_INTERVAL_S", 0.01),
        (trtllm, "WATCH_INTERVAL_S", 0.01),
        (readings, "HEALTH_TIMEOUT_S", 0.1),
    ):
        monkeypatch.setattr(module, name, seconds)
    release = threading.Event()
    async with started(model) as (engine, _):
        fake_trtllm.LLM.last._check_health = lambda: release.wait(LIMIT_S)
        with contextlib.suppress(EngineDied):  # on a loaded machine even this one notices a hang
            await run(engine, request())
        await eventually(lambda: not engine.healthy())
        with pytest.raises(EngineDied, match="did not return"):
            await run(engine, request())
        release.set()


@BOTH
async def test_kv_events_from_the_first_response_on(engine: TrtllmEngine, fake_trtllm: Any) -> None:
    events = engine.kv_events()
    reader = asyncio.ensure_future(anext(events))
    await asyncio.wait([reader], timeout=0.05)
    assert not reader.done()
    await run(engine, request())
    await eventually(lambda: engine.load().kv_used is not None)
    first = await asyncio.wait_for(reader, LIMIT_S)
    assert isinstance(first, BlocksStored)
    assert first == BlocksStored(None, [(first.blocks[0][0], PROMPT[:32])])
    await engine.stop(5.0)
    assert fake_trtllm.LLM.last.shutdowns == 1
    async with asyncio.timeout(LIMIT_S):
        rest = [event async for event in events]  # ends with the engine
    assert [event for event in rest if not isinstance(event, BlocksStored)] == []


async def test_a_slow_reader_gets_a_cleared_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "MAX_EVENTS", 8)
    queue = KvEventQueue()
    queue.put([BlocksStored(None, [(i, [i])]) for i in range(9)])
    queue.close()
    assert [event async for event in queue.read()] == [CacheCleared()]
