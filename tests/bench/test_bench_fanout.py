"""Siblings that start in one moment: what is sent, and the figures of a stack."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from bench import fanout
from bench.prefixes import CHARS_PER_TOKEN, Turn


def test_siblings_share_a_system_prompt_and_strangers_nothing() -> None:
    alike = fanout.texts(8, shared=2000, tail=50, seed="a")
    assert len({system for system, _ in alike}) == 1
    assert len({question for _, question in alike}) == 8
    assert len(alike[0][0]) == pytest.approx(2000 * CHARS_PER_TOKEN, rel=0.01)
    apart = fanout.texts(8, shared=0, tail=50, seed="a")
    assert len({system[:10] for system, _ in apart}) == 8


def test_computed_tokens_are_counted_in_prompts() -> None:
    assert fanout.computed(
        [Turn(1.0, 1000, 0), Turn(1.0, 1000, 950), Turn(1.0, 1000, 950)]
    ) == pytest.approx(1.1)


@pytest.mark.slow
async def test_siblings_compute_one_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "CASES", ((8, 1),))
    out = tmp_path / "out.json"
    status = await asyncio.to_thread(fanout.main, ["--rounds", "1", "--out", str(out)])
    assert status == 0
    held, not_held = msgspec.json.decode(out.read_bytes(), type=fanout.Result).figures
    assert held.computed <= 1.15
    assert not_held.computed > 7
    assert held.p95_ms < not_held.p50_ms
    assert json.loads(out.read_text())["label"] == "fanout"
