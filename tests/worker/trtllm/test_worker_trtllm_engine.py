"""The TensorRT-LLM engine over a fake of the package, in each family of releases."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.conversation import OutputFormat
from schemas.errors import EngineFailed, Invalid
from schemas.events import FinishReason
from services.worker.engine import EngineDied
from services.worker.engines import open_turns
from services.worker.engines.trtllm import engine as trtllm
from services.worker.engines.trtllm.engine import TrtllmEngine
from tests.kit.engines import begun, request, rest, run
from tests.kit.waiting import eventually
from tests.worker.fake_tensorrt_llm import VERSIONS
from tests.worker.trtllm.serving import BOTH, OLD, started


@BOTH
async def test_an_engine_describes_itself(model: Path, fake_trtllm: Any) -> None:
    async with started(model) as (_, info):
        pass
    assert (info.name, info.version) == ("trtllm", fake_trtllm.__version__)
    assert (info.max_model_len, info.block_tokens) == (4096, 32)
    assert (info.vocab_size, info.eos_ids) == (512, [5, 7])
    assert info.kv_tokens == (32768 if fake_trtllm.__version__ == VERSIONS[-1] else None)
    assert fake_trtllm.LLM.last.kwargs["max_seq_len"] == 4096


@BOTH
async def test_what_a_turn_asks_for_arrives(engine: TrtllmEngine, fake_trtllm: Any) -> None:
    """Forms, biases and retention; a turn that is left is aborted, and one that ended is not."""
    schema, bias = {"type": "object"}, {1: -100.0, 3: 2.5}
    await run(engine, request(guided=OutputFormat("json_schema", schema), logit_bias=bias))
    await run(engine, request(retain_s=300, session="s"))
    await (await begun(engine, request(max_tokens=3000))).aclose()
    runtime = fake_trtllm.LLM.last.runtime
    plain, retained, left = runtime.outputs[-3:]
    assert (plain.aborts, retained.aborts, left.aborts) == (0, 0, 1)
    await eventually(lambda: not runtime.running)
    assert plain.sampling.guided_decoding.json == schema
    assert plain.sampling.embedding_bias[:5] == [0.0, -100.0, 0.0, 2.5, 0.0]
    assert len(plain.sampling.embedding_bias) == 512
    assert plain.cache_arguments == {}
    # With one cache the session is of no use.
    assert set(retained.cache_arguments) == {"kv_cache_retention_config"}
    config = retained.cache_arguments["kv_cache_retention_config"]
    for part in (*config.ranges, config.decode):
        assert (part.token_start, part.token_end) == (0, None)
        assert part.duration == timedelta(seconds=300)
        assert part.priority > 35, "the default"


@BOTH
async def test_an_error_of_one_request_ends_that_turn_alone(
    engine: TrtllmEngine, fake_trtllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its submission, or in mid-stream: its own error, or one that the library raises while it
    reads the response."""
    request_error = fake_trtllm.llmapi.RequestError
    other = await begun(engine, request("other", max_tokens=300))
    for kind in (TypeError, request_error):

        def refuse(*args: Any, kind: Any = kind, **kwargs: Any) -> None:
            raise kind("prompt length 9000 exceeds max_num_tokens 8192")

        with monkeypatch.context() as patch:
            patch.setattr(fake_trtllm.LLM.last, "generate_async", refuse)
            with pytest.raises(Invalid, match="max_num_tokens"):
                await run(engine, request())
        assert engine.load().running <= 1
    for kind in (request_error, ValueError):
        deltas = await begun(engine, request("bad", max_tokens=3000))
        bad = fake_trtllm.LLM.last.runtime.outputs[-1]
        bad.deliver(kind("bad word"))
        with pytest.raises(EngineFailed, match="bad word") as caught:
            await rest(deltas)
        assert not isinstance(caught.value, EngineDied)
        assert bad.aborts == 1
    assert engine.healthy()
    assert (await rest(other))[-1].finish is FinishReason.LENGTH


@BOTH
async def test_any_other_error_is_the_end_of_all(engine: TrtllmEngine, fake_trtllm: Any) -> None:
    turns = [await begun(engine, request(f"t{i}", max_tokens=3000)) for i in range(3)]
    fake_trtllm.LLM.last.runtime.outputs[1].deliver(RuntimeError("NCCL: failed"))
    for deltas in turns:
        with pytest.raises(EngineDied, match="NCCL"):
            await rest(deltas)


@OLD
async def test_idleness_is_not_silence(
    fake_trtllm: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request after an hour gets the whole time of the watchdog."""
    ahead, reads = [0.0], [0]

    def monotonic() -> float:
        reads[0] += 1
        return time.monotonic() + ahead[0]

    monkeypatch.setattr(open_turns, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(trtllm, "WATCH_INTERVAL_S", 0.01)
    async with started(model, watchdog_s=600.0) as (engine, _):
        runtime = fake_trtllm.LLM.last.runtime
        runtime.held = True
        ahead[0] = 3600.0
        task = asyncio.create_task(run(engine, request()))
        await eventually(lambda: bool(runtime.waiting))
        judged = reads[0] + 3
        await eventually(lambda: reads[0] > judged)
        assert engine.healthy()
        runtime.held = False
        assert await task
