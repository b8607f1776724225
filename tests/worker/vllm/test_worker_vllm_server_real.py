"""`vllm serve` itself on a CPU, as a process of its own (`make test-vllm`).

A server starts in a minute or more: the tests share one, until one of them ends it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from bench.random_model import build_random_model
from schemas.errors import EngineFailed, Unavailable
from schemas.token_ids import pack_ids
from services.runtime.config.stages import WorkerConfig
from services.tokenization.block_keys import block_keys
from services.worker.engine import EngineDelta, EngineRequest
from services.worker.engines.registry import open_engine
from services.worker.kv.blocks import KvBlockIndex
from tests.kit.engines import begun, rest, torch, transformers, update, versions_of, with_vllm
from tests.kit.listening import listen
from tests.kit.vision_model import build_vision_model
from tests.kit.vllm_serve import BLOCK, VllmServe, vllm_serve
from tests.kit.waiting import ENGINE_LIMIT_S, eventually
from tests.worker.conformance import Bench, Conformance, cached, output
from tests.worker.vision import VisionConformance, VisionPrompts
from tests.worker.weights import WeightsConformance

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
    if engine.healthy() and engine.weights_version:
        await update(engine, model, 0)
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


# -- weights


@pytest.fixture(scope="module")
def versions(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders with the weights of versions 0, 1 and 2."""
    folders = [model]
    for version in (1, 2):
        own = _load(folders[-1])
        torch.manual_seed(version)
        with torch.no_grad():
            for weight in own.parameters():
                weight.add_(torch.randn_like(weight) * 0.02)
        folders.append(tmp_path_factory.mktemp("weights") / str(version))
        own.save_pretrained(folders[-1])
    return folders


def _load(folder: Path) -> Any:
    return transformers.Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _logprobs(own: Any, ids: list[int]) -> list[float]:
    """The log probabilities that the model computes for the tokens after `PROMPT`."""
    with torch.no_grad():
        logits = own(torch.tensor([[*PROMPT, *ids]])).logits[0, len(PROMPT) - 1 : -1]
    chosen: list[float] = logits.log_softmax(dim=-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    return [float(value) for value in chosen]


@dataclass
class Turns:
    """Open turns, and what each has had."""

    bench: Bench
    deltas: list[list[EngineDelta]] = field(default_factory=list)
    tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    def open(self, count: int, **options: Any) -> None:
        for _ in range(count):
            self.deltas.append([])
            request = self.bench.request(logprobs=0, **options)
            self.tasks.append(asyncio.create_task(self._collect(request, self.deltas[-1])))

    async def _collect(self, request: EngineRequest, deltas: list[EngineDelta]) -> None:
        async for delta in listen(self.bench.engine, request):
            deltas.append(delta)

    async def decoded(self, tokens: int) -> None:
        """Returns when the turns together have as many tokens."""
        await eventually(
            lambda: sum(len(output(deltas)) for deltas in self.deltas) >= tokens, ENGINE_LIMIT_S
        )

    async def end(self) -> None:
        async with asyncio.timeout(ENGINE_LIMIT_S):
            await asyncio.gather(*self.tasks)

    async def check(self, versions: list[Path]) -> set[int]:
        """Off the loop, as `_check`."""
        return await asyncio.to_thread(self._check, versions)

    def _check(self, versions: list[Path]) -> set[int]:
        """Compares each token with what the weights of its version make of all before it, and
        returns the versions."""
        models = [_load(folder) for folder in versions]
        for deltas in self.deltas:
            ids, spans = output(deltas), versions_of(deltas)
            own = [_logprobs(one, ids) for one in models]
            expected = [own[version % len(own)][at] for at, version in enumerate(spans)]
            told = [row[0][1] for delta in deltas for row in delta.logprobs or []]
            assert told == pytest.approx(expected, abs=1e-3)
        return {version for deltas in self.deltas for version in versions_of(deltas)}


@pytest.fixture
def turns(bench: Bench) -> Turns:
    return Turns(bench)


async def test_every_token_is_that_of_the_weights_of_its_span(
    turns: Turns, versions: list[Path]
) -> None:
    engine: Any = turns.bench.engine
    turns.open(SLOTS + 2, max_tokens=400)
    for version in range(1, 10):
        await turns.decoded(200 * version)
        await update(engine, versions[version % 3], version)
        assert engine.weights_version == version
    await turns.end()
    seen = await turns.check(versions)
    assert {0, 1, 2, 3} <= seen <= {*range(10)}, "a fast machine ends the turns before the last"


async def test_kept_turns_go_on_and_aborted_ones_end(turns: Turns, versions: list[Path]) -> None:
    engine: Any = turns.bench.engine
    turns.open(2, max_tokens=200)
    await turns.decoded(20)
    await engine.pause(abort=False)
    await asyncio.sleep(0.2)
    before = [len(output(deltas)) for deltas in turns.deltas]
    await engine.update_weights(str(versions[1]), 1)
    turns.open(1, max_tokens=20)
    await asyncio.sleep(2.0)
    assert [len(output(deltas)) for deltas in turns.deltas] == [*before, 0]
    await engine.resume()
    await turns.end()
    assert await turns.check(versions) == {0, 1}
    assert set(versions_of(turns.deltas[-1])) == {1}

    stream = await begun(engine, turns.bench.request(max_tokens=2000))
    await engine.pause(abort=True)
    with pytest.raises(Unavailable, match="paused"):
        await rest(stream)
    await engine.resume()
    assert len(await turns.bench.ids(turns.bench.request(max_tokens=8))) == 8


async def test_no_prompt_finds_blocks_of_older_weights(
    turns: Turns, shared: Shared, versions: list[Path]
) -> None:
    """Also by vLLM's own count, and with the blocks that open turns have when it is paused."""
    bench, engine = turns.bench, cast(Any, turns.bench.engine)
    server = await shared.running()
    await bench.run(bench.request())
    assert cached(await bench.run(bench.request())) == 96
    turns.open(1, max_tokens=200)
    await turns.decoded(20)
    hits = await server.metric("vllm:prefix_cache_hits_total")
    await update(engine, versions[2], 2)
    await turns.end()
    other = [*PROMPT[1:], 9]
    assert cached(await bench.run(bench.request(other))) == 0
    again = await bench.run(bench.request())
    assert cached(again) == 96, "those of the open turn, computed again"
    await update(engine, versions[0], 3)
    assert cached(await bench.run(bench.request())) == 0
    assert await server.metric("vllm:prefix_cache_hits_total") - hits in (96, 192)
    await turns.check(versions)


async def test_what_somebody_else_loads_is_noticed(
    turns: Turns, shared: Shared, versions: list[Path]
) -> None:
    engine: Any = turns.bench.engine
    server = await shared.running()
    turns.open(2, max_tokens=300)
    await turns.decoded(20)
    await server.post("/pause?mode=keep")
    await asyncio.sleep(3.0)
    load: dict[str, Any] = {
        "method": "reload_weights",
        "kwargs": {"weights_path": str(versions[1])},
    }
    await server.post("/collective_rpc", load)
    await server.post("/update_weight_version", {"new_version": "4"})
    await server.post("/resume")
    await turns.end()
    assert await turns.check(versions) == {0, 4}
    assert engine.weights_version == 4

    turns.open(1, max_tokens=200)
    await turns.decoded(620)
    await engine.pause(abort=False)
    load["kwargs"] = {"weights_path": str(versions[2])}
    await server.post("/collective_rpc", load)
    await server.post("/update_weight_version", {"new_version": "5"})
    await engine.resume()
    assert engine.weights_version == 5
    await turns.end()
    assert await turns.check(versions) == {0, 4, 5}


async def test_weights_that_do_not_exist(turns: Turns, versions: list[Path]) -> None:
    engine: Any = turns.bench.engine
    turns.open(2, max_tokens=300)
    await turns.decoded(40)
    await update(engine, versions[1], 1)
    with pytest.raises(EngineFailed, match=r"/nowhere/weights: .*the old weights are loaded again"):
        await update(engine, "/nowhere/weights", 2)
    await turns.end()
    assert engine.weights_version == 1
    assert await turns.check(versions) == {0, 1}


class TestVllmServer(Conformance, WeightsConformance):
    @pytest.fixture
    def sources(self, versions: list[Path], tmp_path: Path) -> tuple[Path, Path]:
        return versions[1], tmp_path


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
