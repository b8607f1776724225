"""The conformance suite over every engine that this machine has."""

import importlib.util
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.runtime.config import WorkerConfig
from services.worker.engines import open_engine
from services.worker.engines.ticker import Ticker
from tests.worker.conformance import Bench, Conformance

SLOTS = 4


class TestScript(Conformance):
    @pytest.fixture
    async def bench(self, demo_model: Path) -> AsyncIterator[Bench]:
        from tokenizers import Tokenizer

        config = WorkerConfig(model=str(demo_model), slots=SLOTS, script_mode="request", token_delay_ms=0.1)
        engine: Any = open_engine("script", config)
        info = await engine.start()
        tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
        text = "<|im_start|>user\n[[say]][[fill 4000]][[/say]]" + "x " * 40 + "<|im_end|>\n<|im_start|>assistant\n"
        prompt = tokenizer.encode(text, add_special_tokens=False).ids
        held: list[Ticker[Any]] = []

        def hold() -> None:
            held.append(engine._ticker)
            engine._ticker = Ticker(lambda stream, now: None)

        def resume() -> None:
            engine._ticker = held.pop()

        yield Bench(engine, info, prompt, lambda: engine._die("the test says so"), hold, resume, SLOTS)
        await engine.stop(1.0)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("mode", ["sampling", "greedy"])
class TestTransformers(Conformance):
    @pytest.fixture
    async def bench(self, tiny_model: Path, mode: str) -> AsyncIterator[Bench]:
        config = WorkerConfig(
            model=str(tiny_model), slots=SLOTS, kv_tokens=16_384, engine_args={"mode": mode, "threads": 1}
        )
        engine: Any = open_engine("transformers", config)
        info = await engine.start()
        prompt = [(11 * i + 3) % 500 + 8 for i in range(100)]

        processor = engine._manager.batch_processor
        prepare = processor.prepare_next_batch
        gate = threading.Event()
        gate.set()

        def gated() -> bool:
            gate.wait()
            return bool(prepare())

        def broken() -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

        def kill() -> None:
            processor.prepare_next_batch = broken

        processor.prepare_next_batch = gated
        yield Bench(engine, info, prompt, kill, gate.clear, gate.set, SLOTS)
        gate.set()
        await engine.stop(5.0)


@pytest.mark.parametrize("fake_trtllm", ["v12", "main26"], indirect=True)
class TestTrtllm(Conformance):
    @pytest.fixture
    async def bench(self, fake_trtllm: Any, tmp_path: Path) -> AsyncIterator[Bench]:
        (tmp_path / "config.json").write_text('{"vocab_size": 512, "eos_token_id": [5, 7]}')
        config = WorkerConfig(model=str(tmp_path), slots=SLOTS, max_model_len=4096, watchdog_s=0.5)
        engine: Any = open_engine("trtllm", config)
        info = await engine.start()
        runtime = fake_trtllm.LLM.last.runtime
        prompt = [(11 * i + 3) % 500 + 8 for i in range(100)]

        def hold() -> None:
            runtime.held = True

        def resume() -> None:
            runtime.held = False

        yield Bench(engine, info, prompt, runtime.kill, hold, resume, SLOTS)
        await engine.stop(5.0)
