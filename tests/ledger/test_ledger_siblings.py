"""Sessions that look alike: ten at once, of all clients, in any order, with published templates."""

from collections import Counter

import pytest

from sessions.crowd import Crowd
from sessions.published import of_trl
from tests.kit.every import Cases
from tests.ledger.walks import TEMPLATES, Models, parts

CROWDS = 6
"""Crowds per template in the long walk."""


def walk(name: str, models: Models, seeds: range) -> Counter[str]:
    counts = Counter[str]()
    for seed in seeds:
        crowd = Crowd(models.of(name), seed, tenants=1 + seed % 2)
        counts += crowd.play()
        assert not crowd.faults, "\n".join(crowd.faults[:3])
    return counts


@pytest.mark.parametrize("name", ["qwen3_8", "gptoss", "demo", "clears_thinking"])
def test_ten_alike_sessions_are_exact(name: str, models: Models) -> None:
    counts = walk(name, models, range(1))
    assert counts["exact"] > counts["rendered"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("names", parts(TEMPLATES))
def test_ten_alike_sessions_are_exact_in_long_walks(
    names: list[str], models: Models, cases: Cases
) -> None:
    for name in names:
        with cases.case(template=name):
            counts = walk(name, models, range(100, 100 + CROWDS))
            # Some others keep no turn, or never write their own opening.
            assert counts["exact"] > 0 or name not in of_trl()
            assert counts["wrong"] == counts["foreign"] == 0
