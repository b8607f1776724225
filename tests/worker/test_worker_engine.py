"""The conformance suite over every engine that this machine has."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Sampling
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineRequest
from services.worker.engines.registry import open_engine
from tests.kit.engines import EMPTY_MODEL, PROMPT, with_torch
from tests.kit.listening import Listener
from tests.worker.conformance import Bench, Conformance
from tests.worker.fake_cache import FakeCache
from tests.worker.fake_llama_server import fake_llama_server
from tests.worker.fake_llama_server import write_model as write_llama_model
from tests.worker.fake_sglang_server import fake_sglang_server
from tests.worker.fake_tensorrt_llm import VERSIONS
from tests.worker.fake_vllm import BLOCK
from tests.worker.fake_vllm_server import fake_vllm_server
from tests.worker.vision import VisionConformance
from tests.worker.weights import WeightsConformance

SLOTS = 4


class TestScript(Conformance, WeightsConformance):
    @pytest.fixture
    def sources(self, tmp_path: Path) -> tuple[Path, Path]:
        for name in ("new", "broken"):
            (tmp_path / name).mkdir()
        (tmp_path / "new" / "script.json").write_text('{"seconds": 0.05}')
        (tmp_path / "broken" / "script.json").write_text('{"fail": "half a file"}')
        return tmp_path / "new", tmp_path / "broken"

    @pytest.fixture
    async def bench(self, demo_dir: Path) -> AsyncIterator[Bench]:
        from tokenizers import Tokenizer

        config = WorkerConfig(
            model=str(demo_dir), slots=SLOTS, script_mode="request", token_delay_ms=0.1
        )
        engine: Any = open_engine("script", config)
        info = await engine.start()
        tokenizer = Tokenizer.from_file(str(demo_dir / "tokenizer.json"))
        text = "<|im_start|>user\n[[say]][[{}]][[/say]]" + "x " * 40 + "<|im_end|>\n"
        prompt, death = (
            tokenizer.encode(text.format(what), add_special_tokens=False).ids
            for what in ("fill 4000", "die")
        )

        def kill() -> None:
            listener = Listener()
            engine.open(EngineRequest("death", death, Sampling(max_tokens=8), []), listener)
            listener.opened = True

        yield Bench(engine, info, prompt, kill, slots=SLOTS)
        await engine.stop(1.0)


class TestScriptVision(VisionConformance):
    @pytest.fixture
    async def bench(self, vision_dir: Path) -> AsyncIterator[Bench]:
        config = WorkerConfig(model=str(vision_dir), slots=SLOTS, token_delay_ms=0.1)
        engine: Any = open_engine("script", config)
        yield Bench(engine, await engine.start(), [], lambda: None, slots=SLOTS)
        await engine.stop(1.0)


class TransformersBench:
    @pytest.fixture
    async def bench(self, tiny_model: Path, mode: str, managers: list[Any]) -> AsyncIterator[Bench]:
        config = WorkerConfig(
            model=str(tiny_model),
            slots=SLOTS,
            kv_tokens=16_384,
            engine_args={"mode": mode, "threads": 1},
        )
        engine: Any = open_engine("transformers", config)
        info = await engine.start()

        def broken() -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        def kill() -> None:
            managers[-1].batch_processor.prepare_next_batch = broken

        yield Bench(engine, info, PROMPT, kill, SLOTS)
        await engine.stop(5.0)


@with_torch
class TestTransformersCore(TransformersBench):
    @pytest.mark.parametrize("mode", ["sampling"])
    async def test_core_of_the_suite(self, bench: Bench) -> None:
        """What the quick tests run of the suite, in one engine."""
        suite = Conformance()
        await suite.test_one_terminal_delta_at_the_end(bench)
        await suite.test_short_turn_leaves_its_whole_prompt_in_the_cache(bench, "a stop")
        await suite.test_a_stop_id_ends_the_turn_and_is_not_among_the_ids(bench)
        await suite.test_declared_features_are_accepted_and_others_refused(bench)
        await suite.test_a_closed_turn_stops_decoding_and_gets_nothing_more(bench)
        await suite.test_death_ends_every_open_turn_and_is_permanent(bench)


@with_torch
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sampling", "greedy"])
class TestTransformers(TransformersBench, Conformance, WeightsConformance):
    @pytest.fixture
    def sources(self, tiny_model: Path, tmp_path: Path) -> tuple[Path, Path]:
        return tiny_model, tmp_path


@with_torch
@pytest.mark.slow
class TestTransformersVision(VisionConformance):
    @pytest.fixture
    async def bench(self, vision_dir: Path) -> AsyncIterator[Bench]:
        arguments = {"load_format": "dummy", "seed": 0, "threads": 1}
        config = WorkerConfig(
            model=str(vision_dir), slots=SLOTS, kv_tokens=16_384, engine_args=arguments
        )
        engine: Any = open_engine("transformers", config)
        yield Bench(engine, await engine.start(), [], lambda: None, slots=SLOTS)
        await engine.stop(5.0)


@pytest.mark.parametrize("fake_trtllm", [VERSIONS[0], VERSIONS[-1]], indirect=True)
class TestTrtllm(Conformance):
    @pytest.fixture
    async def bench(self, fake_trtllm: Any, tmp_path: Path) -> AsyncIterator[Bench]:
        (tmp_path / "config.json").write_text(EMPTY_MODEL)
        config = WorkerConfig(model=str(tmp_path), slots=SLOTS, max_model_len=4096, watchdog_s=0.6)
        engine: Any = open_engine("trtllm", config)
        info = await engine.start()
        yield Bench(engine, info, PROMPT, fake_trtllm.LLM.last.runtime.kill, SLOTS)
        await engine.stop(5.0)


class TestVllm(Conformance):
    """Over the fake package; `test_worker_vllm_real.py` runs the suite over vLLM itself."""

    @pytest.fixture
    async def bench(self, fake_vllm: Any, tmp_path: Path) -> AsyncIterator[Bench]:
        (tmp_path / "config.json").write_text(EMPTY_MODEL)
        config = WorkerConfig(model=str(tmp_path), slots=SLOTS, max_model_len=4096)
        engine: Any = open_engine("vllm", config)
        info = await engine.start()
        yield Bench(engine, info, PROMPT, fake_vllm.last.kill, SLOTS)
        await engine.stop(5.0)


class ServerWeights(WeightsConformance):
    """Over a fake server, which has the weights elsewhere."""

    @pytest.fixture
    def sources(self, tmp_path: Path) -> tuple[Path, Path]:
        return Path("/weights/1"), tmp_path


class TestVllmServer(Conformance, ServerWeights):
    """Over a fake server; `test_worker_vllm_server_real.py` runs the suite over `vllm serve`."""

    @pytest.fixture
    async def bench(self, fake_vllm: Any, tmp_path: Path) -> AsyncIterator[Bench]:
        (tmp_path / "config.json").write_text(EMPTY_MODEL)
        async with fake_vllm_server() as server:
            config = WorkerConfig(model=str(tmp_path), slots=SLOTS, engine_url=server.url)
            engine: Any = open_engine("vllm-server", config)
            info = await engine.start()
            server.engine.cache = FakeCache(BLOCK)
            server.weights.sources = {"/weights/1": 1}
            yield Bench(engine, info, PROMPT, server.kill, SLOTS)
            await engine.stop(5.0)


@pytest.mark.parametrize("increments", [True, False])
class TestSglangServer(Conformance, ServerWeights):
    """Over a fake server, with both forms of streams; with a tokenizer, and without one."""

    @pytest.fixture
    async def bench(self, increments: bool, tmp_path: Path) -> AsyncIterator[Bench]:
        (tmp_path / "config.json").write_text(EMPTY_MODEL)
        options = {
            "incremental_streaming_output": increments,
            "skip_tokenizer_init": not increments,
        }
        async with fake_sglang_server(**options) as server:
            config = WorkerConfig(model=str(tmp_path), slots=SLOTS, engine_url=server.url)
            engine: Any = open_engine("sglang-server", config)
            info = await engine.start()
            server.engine.cache = FakeCache(BLOCK)
            server.weights.sources = {"/weights/1": 1}
            yield Bench(engine, info, PROMPT, server.kill, SLOTS)
            await engine.stop(5.0)


class TestLlamaServer(Conformance):
    """Over a fake server; `test_worker_llama_server_real.py` runs the suite over llama-server."""

    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        model = write_llama_model(tmp_path)
        async with fake_llama_server(model, slots=SLOTS) as server:
            config = WorkerConfig(model=str(model), engine_url=server.url)
            engine: Any = open_engine("llama-server", config)
            info = await engine.start()
            server.forget()
            yield Bench(engine, info, PROMPT, server.kill, SLOTS, cache_unit=1)
            await engine.stop(5.0)
