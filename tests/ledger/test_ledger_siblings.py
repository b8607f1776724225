"""Sessions that look alike: ten at once, of all clients, in any order, with published templates."""

from collections import Counter
from pathlib import Path

import pytest

from bench.ledger.crowd import Crowd
from bench.ledger.models import build
from bench.ledger.published import of_trl
from tests.ledger.test_ledger_sessions import TEMPLATES

CROWDS = 6
"""Crowds per template in the long walk."""


def walk(name: str, directory: Path, seeds: range) -> Counter[str]:
    setup, counts = build(TEMPLATES[name].read_text(), directory), Counter[str]()
    for seed in seeds:
        crowd = Crowd(setup, seed, tenants=1 + seed % 2)
        counts += crowd.play()
        assert not crowd.faults, "\n".join(crowd.faults[:3])
    return counts


@pytest.mark.parametrize(
    "name", sorted(set(TEMPLATES) & {"qwen3_8", "gptoss", "demo", "clears_thinking"})
)
def test_ten_alike_sessions_are_exact(name: str, tmp_path: Path) -> None:
    counts = walk(name, tmp_path, range(1))
    assert counts["exact"] > counts["rendered"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_ten_alike_sessions_are_exact_in_long_walks(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = walk(name, tmp_path, range(100, 100 + CROWDS))
    with capsys.disabled():
        print(f"\n{name}: {dict(counts)}")
    assert (
        counts["exact"] > 0 or name not in of_trl()
    )  # some others keep no turn, or never write their own opening
    assert counts["wrong"] == counts["foreign"] == 0
