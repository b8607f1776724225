"""The transformers engine with a tiny random model on the CPU."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import EngineFailed, Invalid
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDied, EngineInfo, EngineRequest
from services.worker.engines.transformers.engine import TransformersEngine
from tests.kit import engines
from tests.kit.engines import begun, request, rest, run, torch, transformers
from tests.kit.waiting import eventually

pytestmark = engines.with_torch


def config(model: Path, **changes: Any) -> WorkerConfig:
    args = {"threads": 1, **changes.pop("engine_args", {})}
    return WorkerConfig(
        model=str(model), **{"slots": 8, "kv_tokens": 8192, **changes}, engine_args=args
    )


@asynccontextmanager
async def started(
    model: Path, **changes: Any
) -> AsyncIterator[tuple[TransformersEngine, EngineInfo]]:
    engine = TransformersEngine(config(model, **changes))
    yield engine, await engine.start()
    await engine.stop(5.0)


async def ids_of(engine: TransformersEngine, asked: EngineRequest) -> list[int]:
    return engines.ids_of(await run(engine, asked))


async def test_greedy_tokens_are_those_of_generate(tiny_model: Path, managers: list[Any]) -> None:
    model = transformers.Qwen3ForCausalLM.from_pretrained(tiny_model)
    rng = random.Random(2)
    prompts = [[rng.randrange(8, 512) for _ in range(length)] for length in (1, 32, 33, 700)]
    prompts.append(prompts[3] + [9, 9, 9])
    asked = [request(str(n), ids, (5, 7), max_tokens=32) for n, ids in enumerate(prompts)]
    async with started(tiny_model) as (engine, _):
        made = await asyncio.gather(*(ids_of(engine, one) for one in asked))
        again = [await ids_of(engine, one) for one in asked]
    assert not managers[-1].is_running(), "it stops with the engine"
    for ids, mine, hit in zip(prompts, made, again, strict=True):
        expected = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=32, eos_token_id=[5, 7]
        )
        tokens = [token for token in expected[0, len(ids) :].tolist() if token not in (5, 7)]
        assert mine == hit == tokens


async def test_the_models_own_sampling_is_the_default(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tiny_model / name)
    own = '{"do_sample": true, "temperature": 1.5, "top_k": 400, "eos_token_id": 5}'
    (tmp_path / "generation_config.json").write_text(own)
    async with started(tmp_path) as (engine, info):
        free = [await ids_of(engine, request(str(i))) for i in range(2)]
        cold = [await ids_of(engine, request(str(i), temperature=0.0)) for i in range(2)]
    assert info.eos_ids == [5]
    assert free[0] != free[1]
    assert cold[0] == cold[1]


async def test_requests_sample_and_fail_each_for_itself_until_the_thread_dies(
    tiny_model: Path, managers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.worker.engines.transformers import engine as module

    def broken() -> None:
        raise RuntimeError("no such device")

    async with started(tiny_model) as (engine, _):
        greedy = await ids_of(engine, request("g", temperature=0.0))
        mixed = await asyncio.gather(
            ids_of(engine, request("a", temperature=0.0)),
            ids_of(engine, request("b", temperature=1.0, seed=11)),
            ids_of(engine, request("c", temperature=1.0, seed=11, top_k=1)),
            ids_of(engine, request("d", temperature=1.0, top_p=0.9, min_p=0.02)),
            ids_of(engine, request("e", temperature=1.0, seed=11)),
            ids_of(engine, request("f", temperature=1.0, seed=12)),
        )
        assert mixed[0] == mixed[2] == greedy
        assert mixed[1] == mixed[4] != greedy
        assert mixed[5] != mixed[1]

        # The library's own id differs, or a late cancellation would hit the next attempt.
        for _ in range(5):
            await (await begun(engine, request("same", max_tokens=3000))).aclose()
        assert len(await ids_of(engine, request("same", max_tokens=40))) == 40

        other = await begun(engine, request("other", max_tokens=100))
        with monkeypatch.context() as patch:
            patch.setattr(module, "row_arguments", lambda *_: {"temperature": "hot"})
            with pytest.raises(EngineFailed, match="temperature") as caught:
                await run(engine, request("bad"))
        assert not isinstance(caught.value, EngineDied)
        assert len(engines.ids_of(await rest(other))) == 99
        assert engine.healthy()

        managers[-1].batch_processor.prepare_next_batch = broken
        await eventually(lambda: not engine.healthy())
        with pytest.raises(EngineDied):
            await run(engine, request("t"))


async def test_a_stuck_step_is_noticed(tiny_model: Path, managers: list[Any]) -> None:
    gate = threading.Event()
    async with started(tiny_model, watchdog_s=0.3) as (engine, _):
        managers[-1].batch_processor.prepare_next_batch = gate.wait
        with pytest.raises(EngineDied, match="no step in"):
            await run(engine, request("t", max_tokens=3000))
        gate.set()


async def test_a_model_that_cannot_be_served_has_a_reason(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="no config"):
        await TransformersEngine(config(tmp_path)).start()
    own = (tiny_model / "config.json").read_text()
    (tmp_path / "config.json").write_text(own)
    with pytest.raises(EngineFailed, match="cannot load"):
        await TransformersEngine(config(tmp_path)).start()
    hybrid = {**json.loads(own), "layer_types": ["linear_attention", "full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(hybrid))
    with pytest.raises(Invalid, match=r"linear_attention layers of .*: use --engine trtllm"):
        await TransformersEngine(config(tmp_path, engine_args={"load_format": "dummy"})).start()


async def test_window_is_the_models_where_memory_is_in_the_page_cache(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory says nothing: after some reading of files little is free, and nearly all of it
    available."""
    from services.worker.engines.transformers import loader

    monkeypatch.setattr("os.sysconf", lambda _name: 1)
    for available, expected in ((2**33, 4096), (2**22, 1024)):
        monkeypatch.setattr(loader, "available_bytes", lambda available=available: available)
        async with started(tiny_model, kv_tokens=None, device="cpu") as (_, info):
            pass
        assert (info.max_model_len, info.full_len) == (expected, 4096)
        assert ("1/8 of the" in info.limit) == (expected < 4096)
