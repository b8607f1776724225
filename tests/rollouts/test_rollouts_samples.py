"""Samples of generated runs: which turns each has, and which turn it goes back to."""

from array import array

from hypothesis import given

from tests.rollouts.agent_run import AgentRun, runs, samples_of


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
