"""A model with attention beside states, in vLLM itself on a CPU (`make test-vllm`): a worker predicts
what the engine then reports, while its cache evicts."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.token_ids import pack_ids
from services.runtime.config.stages import WorkerConfig
from services.tokenization.block_keys import block_keys
from services.worker.engines.registry import open_engine
from services.worker.kv.blocks import KvBlockIndex
from services.worker.kv.events import BlocksStored
from tests.kit.engines import with_vllm
from tests.kit.waiting import ENGINE_LIMIT_S, eventually
from tests.worker.conformance import Bench, cached
from turnwire_tools.script.demo_model import build_demo_model

SESSIONS = 5
TURNS = 60
BLOCKS = 48
"""Of all groups together: a prompt takes up to 12."""
CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,  # three with states, and one with attention
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "max_position_embeddings": 8192,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * ENGINE_LIMIT_S),
    with_vllm,
]


def build_hybrid_model(path: Path) -> Path:
    """Writes a directory without weights, which vLLM makes up (`load_format`)."""
    build_demo_model(path)
    file = path / "config.json"
    own = json.loads(file.read_bytes())
    kept = {name: own[name] for name in ("vocab_size", "eos_token_id", "pad_token_id")}
    file.write_text(json.dumps({**CONFIG, **kept}))
    return path


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    config = WorkerConfig(
        model=str(build_hybrid_model(tmp_path / "model")),
        slots=2,
        dtype="bfloat16",  # the only one of its kernels for a CPU
        max_model_len=4096,
        watchdog_s=ENGINE_LIMIT_S,
        engine_args={
            "load_format": "dummy",
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "max_num_batched_tokens": 1024,
            "num_gpu_blocks_override": BLOCKS,
        },
    )
    engine = open_engine("vllm", config)
    info = await asyncio.wait_for(engine.start(), ENGINE_LIMIT_S)
    yield Bench(engine, info, [8] * 100, lambda: None, 2, ENGINE_LIMIT_S)
    await engine.stop(20.0)


async def test_predictions_are_what_the_engine_finds(bench: Bench) -> None:
    engine: Any = bench.engine
    size = bench.info.block_tokens or 0
    index = KvBlockIndex(size, None)
    stored = list[list[int]]()

    async def read() -> None:
        async for event in engine.kv_events():
            index.apply(event)
            if isinstance(event, BlocksStored):
                stored.extend(ids for _, ids in event.blocks)

    def predict(ids: list[int]) -> int:
        keys = block_keys(pack_ids(ids), size)
        return index.count_cached(keys, (len(ids) - 1) // size) * size

    def draw(count: int) -> list[int]:
        return [random_.randrange(8, bench.info.vocab_size or 0) for _ in range(count)]

    async def read_all() -> None:
        """Returns when the index has all events so far: the last are those of a new prompt, which
        the engine computes in one step."""
        new = draw(size)
        await bench.run(bench.request(new, max_tokens=1))
        await eventually(lambda: new in stored)

    reading = asyncio.create_task(read())
    random_ = random.Random(43)
    shared = draw(size + 50)
    sessions = [list(shared) for _ in range(SESSIONS)]
    turns = []
    for _ in range(TURNS):
        session = random_.choice(sessions)
        if len(session) > 3 * size:
            session[:] = shared
        session += draw(size // 2)
        await read_all()
        expected = predict(session)
        found = cached(await bench.run(bench.request(session, max_tokens=3))) or 0
        assert expected == found
        turns.append(found)
    assert index.has_ends
    assert index.removals, "nothing was evicted"
    assert {0, size, 2 * size} <= {*turns}
    reading.cancel()
