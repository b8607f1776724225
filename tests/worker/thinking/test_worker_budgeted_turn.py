"""Turns of a worker that continue after an ended thought."""

from schemas.conversation import Sampling
from schemas.errors import ENGINE_DIED, EngineFailed
from schemas.events import FinishReason
from schemas.requests import ThoughtBudget, ThoughtSpelling
from schemas.token_ids import pack_ids
from services.worker.engine import EngineDelta, EngineDied
from tests.kit.waiting import eventually
from tests.kit.worker import HeldTrial

TOKENS = {"<": pack_ids([50]), ">": pack_ids([60])}


def budget_of(tokens: int, grammar: str = "") -> ThoughtBudget:
    """A budget of a turn that begins in a thought; 60 ends it."""
    end = pack_ids([61, 60])
    spelling = ThoughtSpelling(TOKENS, ["<"], [">"], [">"], end, end)
    return ThoughtBudget.of(spelling, tokens, in_reasoning=True, grammar=grammar)


async def test_turn_continues_in_its_stream_after_an_ended_thought(trial: HeldTrial) -> None:
    budget = budget_of(3, "rest")
    sampling = Sampling(max_tokens=10, min_tokens=4, seed=1)
    own = {"priority": 2.0, "cache_salt": "s", "stop_ids": [2, 9]}
    await trial.generate("t", None, thought_budget=budget, sampling=sampling, **own)
    first = trial.engine.open_turns["t.1"]
    first.put(EngineDelta([11], cached=0))
    first.put(EngineDelta([12, 13, 14]))
    assert first.ended, "the engine is stopped at once"
    await eventually(lambda: len(trial.engine.requests) == 2)
    before, request = trial.engine.requests
    assert list(request.token_ids) == [1, 2, 3, 11, 12, 13, 61, 60]
    assert (request.resumed, request.sampling.max_tokens, request.sampling.min_tokens) == (5, 5, 0)
    assert request.sampling.logit_bias == {50: -100.0}, "no other thought opens"
    assert (request.cache_salt, request.stop_ids, request.sampling.seed) == ("s", [2, 9], 1)
    assert request.id != before.id
    assert request.priority > before.priority, "it had a slot"
    assert request.rest_grammar == "", "this engine has no grammars"
    trial.engine.open_turns[request.id].put(EngineDelta([21], cached=8))
    trial.engine.open_turns[request.id].put(EngineDelta([22], finish=FinishReason.STOP, stop_id=2))
    await trial.end_of("t")
    entries = [entry for entry in trial.entries if entry.turn == "t"]
    assert trial.ids("t") == [11, 12, 13, 61, 60, 21, 22]
    assert {entry.cached for entry in entries} <= {None, 0}, (
        "the cached part of the prompt, not of the turn so far"
    )


async def test_turn_that_fails_at_its_budget_is_not_continued(trial: HeldTrial) -> None:
    errors = {"dead": EngineDied("gone"), "failed": EngineFailed("no room")}
    for turn, error in errors.items():
        await trial.generate(turn, None, thought_budget=budget_of(1))
        trial.engine.refuses = error
        trial.engine.open_turns[f"{turn}.1"].put(EngineDelta([11, 12], cached=0))
        end = await trial.end_of(turn)
        trial.engine.refuses = None
        assert end.finish is not None
        assert end.finish.error is not None
        assert end.finish.error.message == error.info.message
        assert (end.finish.error.code == ENGINE_DIED) is (turn == "dead")


async def test_resumed_turn_with_a_spent_budget_opens_no_thought(trial: HeldTrial) -> None:
    """And one that was lost within the end of its thought gets the rest of it."""
    for turn, tokens, resume in (
        ("t", 3, [11, 12, 13, 61, 60, 21]),
        ("u", 4, [11, 12, 13, 60, 21]),
        ("v", 3, [11, 12, 13, 61]),
    ):
        budget, resumed = budget_of(tokens), pack_ids(resume)
        await trial.generate(turn, None, thought_budget=budget, resume=resumed)
    requests = trial.engine.requests
    assert [bool(request.sampling.logit_bias) for request in requests] == [True, False, True]
    assert list(requests[2].token_ids) == [1, 2, 3, 11, 12, 13, 61, 60]
    assert (requests[2].resumed, requests[2].sampling.max_tokens) == (5, 5)
