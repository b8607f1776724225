"""vLLM itself on a CPU (`make test-vllm`).

An engine starts in a minute or more: the tests share one, until one of them ends it.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bench.random_model import build_random_model
from schemas.conversation import OutputFormat
from schemas.errors import Invalid
from schemas.token_ids import pack_ids
from services.runtime.config.stages import WorkerConfig
from services.tokenization.block_keys import block_keys
from services.worker.engine import EngineInfo
from services.worker.engines.registry import open_engine
from services.worker.kv.blocks import KvBlockIndex
from tests.kit.engines import with_vllm
from tests.kit.waiting import ENGINE_LIMIT_S, eventually
from tests.worker.conformance import Bench, Conformance, cached, output

SLOTS = 4
BLOCK = 32
ARGUMENTS = {
    "block_size": BLOCK,
    "enforce_eager": True,
    "max_num_batched_tokens": 1024,
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * ENGINE_LIMIT_S),
    pytest.mark.asyncio(loop_scope="module"),
    with_vllm,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_model(tmp_path_factory.mktemp("vllm") / "model", hidden=256, layers=6)


class Shared:
    """The engine that the tests share while it lives."""

    def __init__(self, model: Path) -> None:
        self._config = WorkerConfig(
            model=str(model),
            slots=SLOTS,
            dtype="float32",
            max_model_len=4096,
            watchdog_s=ENGINE_LIMIT_S,
            engine_args=ARGUMENTS,
        )
        self._engine: Any = None
        self._info: EngineInfo
        self._reading: asyncio.Task[None] | None = None
        self.index = KvBlockIndex(BLOCK, None)

    async def bench(self) -> Bench:
        if self._engine is None or not self._engine.healthy() or self._engine._llm is None:
            await self.stop()
            self._engine = open_engine("vllm", self._config)
            self._info = await asyncio.wait_for(self._engine.start(), ENGINE_LIMIT_S)
            self.index = KvBlockIndex(BLOCK, None)
            self._reading = asyncio.create_task(self._read(self._engine.kv_events()))
        await eventually(lambda: not (self._engine.load().running or self._engine.load().waiting))
        await asyncio.wait_for(self._engine._llm.reset_prefix_cache(), ENGINE_LIMIT_S)
        (core,) = multiprocessing.active_children()
        pid = core.pid or 0
        return Bench(
            self._engine,
            self._info,
            [(11 * i + 3) % 500 + 8 for i in range(100)],
            kill=lambda: os.kill(pid, signal.SIGKILL),
            slots=SLOTS,
            wait_s=ENGINE_LIMIT_S,
        )

    async def _read(self, events: Any) -> None:
        async for event in events:
            self.index.apply(event)

    async def stop(self) -> None:
        if self._engine is not None:
            await self._engine.stop(20.0)
        if self._reading is not None:
            await asyncio.wait_for(self._reading, ENGINE_LIMIT_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model: Path) -> AsyncIterator[Shared]:
    running = Shared(model)
    yield running
    await running.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(shared: Shared) -> Bench:
    return await shared.bench()


async def test_the_index_has_what_the_cache_has(bench: Bench, shared: Shared) -> None:
    assert bench.info.lacking.keys() == {"grammar", "retention", "vision"}
    request = bench.request(max_tokens=40, cache_salt="tenant")
    ids = output(await bench.run(request))
    computed = [*request.token_ids, *ids[:-1]]
    keys = list(block_keys(pack_ids(computed), BLOCK, salt="tenant"))
    assert len(keys) == len(computed) // BLOCK
    await eventually(lambda: set(shared.index.keys()) == set(keys))
    assert (
        cached(await bench.run(bench.request([*computed, 9, 9], cache_salt="tenant")))
        == len(keys) * BLOCK
    )


async def test_a_schema_forces_the_output(bench: Bench, model: Path) -> None:
    from tokenizers import Tokenizer

    mood = {"type": "object", "properties": {"mood": {"const": "calm"}}, "required": ["mood"]}
    form = OutputFormat("json_schema", {**mood, "additionalProperties": False})
    deltas = await bench.run(
        bench.request(guided=form, stop_ids=bench.info.eos_ids, max_tokens=400)
    )
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert tokenizer.decode(output(deltas)) == '{"mood":"calm"}'
    assert deltas[-1].stop_id is not None
    with pytest.raises(Invalid, match="vLLM refused"):
        await bench.run(bench.request(guided=OutputFormat("json_schema", {"type": "nonesuch"})))


class TestVllm(Conformance):
    pass
