"""Models that cannot be loaded, and the window that the memory allows."""

import json
from pathlib import Path

import pytest

from schemas.errors import EngineFailed, Invalid
from services.worker.engines.transformers.engine import TransformersEngine
from tests.kit import engines
from tests.worker.transformers.serving import config, started

pytestmark = engines.with_torch


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
