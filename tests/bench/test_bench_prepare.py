"""The bench of preparation runs, compares ids, and shows what it is there to show."""

from itertools import islice
from pathlib import Path

import pytest

from bench.prepare import Run, Way, large, open_ways, row, run, session, table
from bench.prepare_ledger import play
from bench.report import this_machine


@pytest.fixture(scope="module")
def ways(demo_dir: Path) -> dict[str, Way]:
    return open_ways(demo_dir)


def test_a_session_is_prepared_in_parts(ways: dict[str, Way]) -> None:
    costs = run(list(session(30)), ways, {3, 29})
    first, _, plain = ways
    assert [at for at, cost in enumerate(costs[plain]) if cost is not None] == [3, 29]
    assert all(cost is not None for cost in costs[first])
    assert ways[first].setup.history.parts > 20
    assert ways[plain].setup.history.parts == 0
    shown = table(Run("now", this_machine(), [row("a case", way, costs[way]) for way in ways]))
    assert shown.count("a case") == 3


@pytest.mark.parametrize("kind", ["tail", "fresh"])
def test_large_prompts_are_large(kind: str, ways: dict[str, Way]) -> None:
    costs = run(list(islice(large(kind, 2), 2)), ways, {0, 1})
    assert all(cost is not None and cost[1] > 50_000 for measured in costs.values() for cost in measured)


def test_ways_that_differ_fail(ways: dict[str, Way]) -> None:
    first, _, plain = ways
    other = Way(ways[plain].setup, ways[plain].decode)
    bodies = list(session(2))
    broken = Way(other.setup, lambda data: other.decode(bodies[0]))
    with pytest.raises(SystemExit, match="differ in the ids of request 1"):
        run(bodies, {first: ways[first], "other": broken}, {0, 1})


def test_with_the_ledger_every_turn_is_made_of_its_own_tokens(ways: dict[str, Way]) -> None:
    first, *_ = ways
    way = ways[first]
    assert len(play((way.decode(body) for body in session(20)), way.setup)) == 20
