"""The transformers engine with a tiny random model on the CPU."""

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from services.worker.engine import EngineDied
from tests.kit import engines
from tests.kit.engines import request, run, torch, transformers
from tests.worker.transformers.serving import ids_of, started

pytestmark = engines.with_torch


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


async def test_a_stuck_step_is_noticed(tiny_model: Path, managers: list[Any]) -> None:
    gate = threading.Event()
    async with started(tiny_model, watchdog_s=0.3) as (engine, _):
        managers[-1].batch_processor.prepare_next_batch = gate.wait
        with pytest.raises(EngineDied, match="no step in"):
            await run(engine, request("t", max_tokens=3000))
        gate.set()
