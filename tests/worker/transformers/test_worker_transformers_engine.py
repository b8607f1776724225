"""The transformers engine with a tiny random model on the CPU."""

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import EngineFailed
from services.worker.engine import EngineDied, EngineRequest
from services.worker.engines.transformers.engine import TransformersEngine
from tests.kit import engines
from tests.kit.engines import begun, request, rest, run, torch, transformers
from tests.kit.waiting import eventually
from tests.worker.transformers.serving import started

pytestmark = engines.with_torch


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
