"""Requests of the transformers engine are sampled, and fail, each for itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import EngineFailed
from services.worker.engine import EngineDied
from tests.kit import engines
from tests.kit.engines import begun, request, rest, run
from tests.kit.waiting import eventually
from tests.worker.transformers.serving import ids_of, started

pytestmark = engines.with_torch


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
    from services.worker.engines.transformers import library_requests as module

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
