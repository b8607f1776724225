"""`vllm serve` itself on a CPU, as a process of its own (`make test-vllm`).

A server starts in a minute or more: the tests share one, until one of them ends it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bench.random_model import build_random_model
from schemas.frames import pack_ids
from services.runtime.config import WorkerConfig
from services.tokenization.block_keys import block_keys
from services.worker.engines.registry import open_engine
from services.worker.kv.blocks import KvBlockIndex
from tests.kit.engines import with_vllm
from tests.kit.vision_model import build_vision_model
from tests.kit.vllm_serve import BLOCK, VllmServe, vllm_serve
from tests.kit.waiting import ENGINE_LIMIT_S, eventually
from tests.worker.conformance import Bench, Conformance, cached, output
from tests.worker.vision import VisionConformance, VisionPrompts

SLOTS = 4
PROMPT = [(11 * i + 3) % 500 + 8 for i in range(100)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * ENGINE_LIMIT_S),
    pytest.mark.asyncio(loop_scope="module"),
    with_vllm,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_model(tmp_path_factory.mktemp("vllm") / "model", hidden=256, layers=6)


def _config(model: Path, server: VllmServe | None = None) -> WorkerConfig:
    arguments: dict[str, Any] = {"block_size": BLOCK, "enforce_eager": True}
    return WorkerConfig(
        engine="vllm" if server is None else "vllm-server",
        model=str(model),
        slots=SLOTS,
        dtype="float32",
        max_model_len=4096,
        watchdog_s=ENGINE_LIMIT_S,
        engine_args=arguments if server is None else None,
        engine_url=None if server is None else server.url,
    )


class Shared:
    """The server that the tests share while it lives, with an engine for each of them."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._stack = AsyncExitStack()
        self.server: VllmServe | None = None

    async def running(self) -> VllmServe:
        if self.server is None or not self.server.runs:
            flags = (f"--max-num-seqs={SLOTS}", "--max-model-len=4096")
            self.server = await self._stack.enter_async_context(vllm_serve(self._model, *flags))
        return self.server

    async def close(self) -> None:
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model: Path) -> AsyncIterator[Shared]:
    running = Shared(model)
    yield running
    await running.close()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(shared: Shared, model: Path) -> AsyncIterator[Bench]:
    server = await shared.running()
    engine: Any = open_engine("vllm-server", _config(model, server))
    info = await asyncio.wait_for(engine.start(), ENGINE_LIMIT_S)
    await server.clear_cache()
    yield Bench(engine, info, PROMPT, server.kill, SLOTS, ENGINE_LIMIT_S)
    await engine.stop(5.0)


async def test_the_index_has_what_the_cache_has(bench: Bench) -> None:
    assert bench.info.lacking.keys() == {"retention", "vision"}
    engine: Any = bench.engine
    index = KvBlockIndex(BLOCK, None)

    async def read() -> None:
        async for event in engine.kv_events():
            index.apply(event)

    reading = asyncio.create_task(read())
    request = bench.request(max_tokens=40, cache_salt="tenant")
    computed = [*request.token_ids, *output(await bench.run(request))[:-1]]
    keys = list(block_keys(pack_ids(computed), BLOCK, salt="tenant"))
    await eventually(lambda: set(index.keys()) >= set(keys))
    again = await bench.run(bench.request([*computed, 9, 9], cache_salt="tenant"))
    assert cached(again) == len(keys) * BLOCK
    reading.cancel()


async def test_tokens_and_log_probabilities_are_those_of_the_engine_in_process(
    bench: Bench, model: Path
) -> None:
    other: Any = open_engine("vllm", _config(model))
    info = await asyncio.wait_for(other.start(), ENGINE_LIMIT_S)
    inside = Bench(other, info, PROMPT, lambda: None, SLOTS, ENGINE_LIMIT_S)
    for length in (5, 33, 100):
        prompt = PROMPT[:length]
        theirs, ours = [
            await one.run(one.request(prompt, max_tokens=32, logprobs=2)) for one in (inside, bench)
        ]
        assert output(ours) == output(theirs)
        pairs = [
            [pair for delta in deltas for row in delta.logprobs or () for pair in row]
            for deltas in (ours, theirs)
        ]
        assert [token for token, _ in pairs[0]] == [token for token, _ in pairs[1]]
        assert [value for _, value in pairs[0]] == pytest.approx([value for _, value in pairs[1]])
    await other.stop(20.0)


class TestVllmServer(Conformance):
    pass


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Idefics3 with random weights."""
    folder = tmp_path_factory.mktemp("vision") / "model"
    return build_vision_model(folder, "idefics", weights=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seeing(vision_model: Path) -> AsyncIterator[VllmServe]:
    flags = ('--limit-mm-per-prompt={"image": 4}', "--max-num-seqs=8", "--max-model-len=2048")
    async with vllm_serve(vision_model, *flags) as server:
        yield server


class TestVision(VisionConformance):
    @pytest.fixture
    def vision(self, vision_model: Path) -> VisionPrompts:
        return VisionPrompts(vision_model, "idefics")

    @pytest_asyncio.fixture(loop_scope="module")
    async def bench(self, seeing: VllmServe, vision_model: Path) -> AsyncIterator[Bench]:
        engine: Any = open_engine("vllm-server", _config(vision_model, seeing))
        info = await asyncio.wait_for(engine.start(), ENGINE_LIMIT_S)
        await seeing.clear_cache()
        prompt = list(range(8, 108))
        yield Bench(engine, info, prompt, seeing.kill, wait_s=ENGINE_LIMIT_S)
        await engine.stop(5.0)
