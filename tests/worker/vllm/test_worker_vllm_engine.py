"""The vLLM engine over a small strict fake: errors, deaths, events, and what it leaves behind."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import EngineFailed, Invalid
from services.runtime.config.stages import WorkerConfig
from services.worker.engine import EngineDied
from services.worker.engines.vllm.engine import VllmEngine
from services.worker.kv.events import BlocksStored
from tests.kit.engines import EMPTY_MODEL, PROMPT, begun, request, run
from tests.kit.waiting import LIMIT_S, eventually, until_gone


def config(path: Path, **options: Any) -> WorkerConfig:
    (path / "config.json").write_text(EMPTY_MODEL)
    return WorkerConfig(model=str(path), **{"slots": 2, "max_model_len": 1024, **options})


@pytest.fixture
async def engine(fake_vllm: Any, tmp_path: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(config(tmp_path))
    assert (await engine.start()).shares_queued, "unless several prompts prefill side by side"
    yield engine
    await engine.stop(5.0)


async def test_it_describes_the_engine_that_was_built(fake_vllm: Any, tmp_path: Path) -> None:
    own = {"speculative_config": {"method": "ngram"}, "long_prefill_token_threshold": 512}
    engine = VllmEngine(config(tmp_path, kv_tokens=4096, engine_args=own))
    info = await engine.start()
    await engine.stop(5.0)
    assert (info.name, info.version, info.max_model_len, info.slots) == ("vllm", "0.32.0", 1024, 2)
    assert (info.block_tokens, info.eos_ids, info.vocab_size) == (16, [5, 7], 512)
    assert (info.kv_tokens or 0) >= 4096
    assert "speculative" in info.lacking["min_p"]
    assert not info.shares_queued, "several prompts prefill side by side"
    assert not {"min_p", "logit_bias"} & info.features


async def test_an_engine_that_cannot_be_built_is_one_error(fake_vllm: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="nonesuch"):
        await VllmEngine(config(tmp_path, engine_args={"nonesuch": 1})).start()
    with pytest.raises(EngineFailed, match="cannot load"):
        await VllmEngine(WorkerConfig(model=str(tmp_path / "none"))).start()


async def test_a_failure_of_one_request_leaves_the_others(
    engine: VllmEngine, fake_vllm: Any
) -> None:
    """A value that vLLM refuses at once or at the first step, and an error of the engine."""
    other = await begun(engine, request("other", max_tokens=400))
    for asked, words in (({"temperature": 3.0}, "temperature must"), ({"logprobs": 21}, "max")):
        with pytest.raises(Invalid, match=words):
            await run(engine, request(**asked))
    fake_vllm.last.failure = RuntimeError("no such LoRA")
    with pytest.raises(EngineFailed, match="no such LoRA") as caught:
        await run(engine, request())
    assert not isinstance(caught.value, EngineDied)
    assert len([delta async for delta in other]) == 399
    assert engine.healthy()


async def test_a_greater_priority_and_a_grammar_arrive(engine: VllmEngine, fake_vllm: Any) -> None:
    fake_vllm.last.gate.clear()
    tasks = [
        asyncio.create_task(run(engine, request(str(n), priority=priority, grammar="start: /x/")))
        for n, priority in enumerate((-3, 0, 0.9))
    ]
    await eventually(lambda: len(fake_vllm.last.requests) == 3)
    assert [made.priority for made in fake_vllm.last.requests] == [3000, 0, -900]
    assert fake_vllm.last.requests[0].sampling.structured_outputs.grammar == "start: /x/"
    fake_vllm.last.gate.set()
    await asyncio.gather(*tasks)


async def test_closing_aborts_the_request_and_a_death_between_turns_is_noticed(
    engine: VllmEngine, fake_vllm: Any
) -> None:
    await (await begun(engine, request(max_tokens=900))).aclose()
    await eventually(lambda: fake_vllm.last.aborted == ["t"])
    assert fake_vllm.last.requests == []
    fake_vllm.last.dead = True
    await eventually(lambda: not engine.healthy())
    with pytest.raises(EngineDied, match="process has ended"):
        await run(engine, request())


async def test_an_engine_without_steps_is_dead(fake_vllm: Any, tmp_path: Path) -> None:
    engine = VllmEngine(config(tmp_path, watchdog_s=0.3))
    await engine.start()
    fake_vllm.last.gate.clear()
    with pytest.raises(EngineDied, match="no step in"):
        await run(engine, request())
    await engine.stop(5.0)


async def test_events_follow_the_cache_until_the_engine_stops(
    fake_vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    engine = VllmEngine(config(tmp_path))
    await engine.start()
    assert os.environ["VLLM_PLUGINS"] == "mine,turnwire", "its processes die with their parent"
    endpoint = fake_vllm.last.args.kv_events_config.endpoint.removeprefix("ipc://")
    assert Path(endpoint).parent.stat().st_mode & 0o077 == 0, "prompts are in the events"
    read: list[Any] = []

    async def reading() -> None:
        read.extend([event async for event in engine.kv_events()])

    task = asyncio.create_task(reading())
    await run(engine, request())
    await asyncio.sleep(0)
    await engine.stop(5.0)
    await asyncio.wait_for(task, LIMIT_S)
    tokens = [ids for event in read if isinstance(event, BlocksStored) for _, ids in event.blocks]
    assert tokens[:3] == [PROMPT[:16], PROMPT[16:32], PROMPT[32:48]]
    assert not Path(endpoint).parent.exists()
    assert fake_vllm.last.shutdowns == 1


PARENT = """
import multiprocessing, os, signal, sys, time
from services.worker.engines.vllm.parent import die_with_parent

def child(pipe):
    die_with_parent()
    pipe.send(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    die_with_parent()  # nothing to wait for
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=child, args=(there,)).start()
    print(here.recv(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_process_of_the_engine_dies_with_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script)]
    ran = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=LIMIT_S, env=environment
    )
    assert ran.returncode == -9
    await until_gone(int(ran.stdout))
    assert multiprocessing.parent_process() is None
