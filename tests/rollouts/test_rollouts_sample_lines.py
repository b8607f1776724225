"""Samples as lines that grow: those of a follower add up to the samples."""

from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import given
from msgspec.structs import asdict

from services.rollouts.samples import Sampler
from tests.rollouts.agent_run import AgentRun, runs, samples_of


@given(runs())
def test_lines_of_a_follower_add_up_to_the_samples(run: AgentRun) -> None:
    sampler = Sampler(one_run=True)
    lines = [msgspec.to_builtins(sampler.follow(turn)) for turn in run.turns]
    joined: dict[str, dict[str, Any]] = {}
    counts: defaultdict[str, int] = defaultdict(int)
    for line in lines:
        assert line["offset"] == counts[line["id"]]
        counts[line["id"]] += len(line["ids"])
        earlier = joined.setdefault(line["id"], {})
        for name, value in line.items():
            if isinstance(value, list):
                value = earlier.get(name, []) + value
            earlier[name] = value
    whole = {sample.id: asdict(sample) for sample in samples_of(run)}
    assert joined.keys() == whole.keys()
    for name, sample in whole.items():
        assert joined[name] | {"offset": 0} == msgspec.to_builtins(sample)
