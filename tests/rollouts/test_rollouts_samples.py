"""Samples of generated runs: which turns each has, and which turn it goes back to."""

from array import array
from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from services.rollouts.sample_lines import Sample
from services.rollouts.samples import Sampler
from tests.rollouts.agent_run import AgentRun, Session

STEPS = ("turn", "turn", "turn", "helper", "retry", "fork", "compact", "title")


@st.composite
def runs(draw: st.DrawFn) -> AgentRun:
    run = AgentRun(with_ids=draw(st.booleans()))
    run.turn(run.sessions[0], calls=1)
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=14)):
        session = draw(st.sampled_from(run.sessions))
        take(run, step, session, draw)
    return run


def take(run: AgentRun, step: str, session: Session, draw: st.DrawFn) -> None:
    match step:
        case "helper" if run.calls:
            helper = run.helper(draw(st.integers(0, len(run.calls) - 1)))
            run.turn(helper)
        case "retry" if session.turns:
            again = run.again(session, draw(st.integers(0, len(session.turns) - 1)), "retry")
            run.turn(again, asks=0)
        case "fork" if len(session.turns) > 1:
            run.turn(run.again(session, draw(st.integers(0, len(session.turns) - 2)), "fork"))
        case "compact" if session.turns:
            run.compact(session)
            run.turn(session)
        case "title" if session.turns:
            run.title(session)
        case _:
            run.turn(session, calls=draw(st.integers(0, 2)))


def samples_of(run: AgentRun) -> list[Sample]:
    sampler = Sampler(one_run=True)
    for turn in run.turns:
        sampler.add(turn)
    return sampler.close()


@given(runs())
def test_each_sample_goes_back_to_its_true_parent(run: AgentRun) -> None:
    samples = samples_of(run)
    assert {sample.id: sample.parent for sample in samples} == run.parents
    assert {sample.id: sample.kind for sample in samples} == run.kinds
    found = {span.turn: sample.id for sample in samples for span in sample.turns}
    assert found == run.samples


@given(runs())
def test_each_decoded_token_is_in_one_mask(run: AgentRun) -> None:
    turns = {turn.id: turn for turn in run.turns}
    decoded = []
    for sample in samples_of(run):
        ids = array("I", sample.ids)
        decoded += [token for token, bit in zip(ids, sample.loss_mask, strict=True) if bit]
        for span in sample.turns:
            turn = turns.pop(span.turn)
            assert (ids[: span.start], ids[span.start : span.end]) == (turn.prompt, turn.output)
            assert sample.logprobs is not None
            assert sample.logprobs[span.start : span.end] == turn.logprobs
    assert not turns
    assert sorted(decoded) == sorted(token for turn in run.turns for token in turn.output)


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
