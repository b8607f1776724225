"""When a rollout takes no more turns, and what its turns are decoded with."""

from itertools import count
from typing import Any

import pytest
from msgspec import structs

from schemas.conversation import Conversation, Hints, Sampling
from services.frontend.apis.rollouts.wire import RolloutSampling
from services.frontend.rollouts.limits import ended_error, reached_limit, rollout_conversation
from services.frontend.rollouts.view import RolloutView
from services.rollouts.rollout import Rollout, RolloutLimits, RolloutState, WeightsPolicy
from tests.frontend.rollouts.records import failed_turn, open_turn, stored_turn

NOW = 1000.0
NUMBERS = count(2)


def view_of(*records: Any, **fields: Any) -> RolloutView:
    """A rollout made at `NOW` with these records."""
    view = RolloutView(Rollout("ro_1", NOW, None, **fields), 1)
    for record in records:
        view.apply(next(NUMBERS), record)
    return view


def test_rollout_without_limits_goes_on() -> None:
    view = view_of(*(stored_turn(f"t{number}") for number in range(50)))
    assert reached_limit(view, NOW + 10**9, 99) is None


def test_each_limit_ends_a_rollout() -> None:
    turns = view_of(stored_turn("t1"), limits=RolloutLimits(turns=2))
    assert reached_limit(turns, NOW, 0) is None
    turns.apply(next(NUMBERS), open_turn("t2"))
    assert reached_limit(turns, NOW, 0) is None, "it may end without a token"
    turns.apply(next(NUMBERS), failed_turn("t2", output_tokens=3))
    assert reached_limit(turns, NOW, 0) == RolloutState("ended", "turns", NOW, 1)

    tokens = view_of(stored_turn("t1", output=[1] * 9), limits=RolloutLimits(output_tokens=10))
    assert reached_limit(tokens, NOW, 0) is None
    tokens.apply(next(NUMBERS), stored_turn("t2", output=[1]))
    assert reached_limit(tokens, NOW, 0) == RolloutState("ended", "output_tokens", NOW, 1)

    seconds = view_of(limits=RolloutLimits(seconds=5.0))
    assert reached_limit(seconds, NOW + 4.9, 0) is None
    assert reached_limit(seconds, NOW + 5, 0) == RolloutState("ended", "seconds", NOW + 5, 1)


@pytest.mark.parametrize(("on_lag", "status"), [("end", "ended"), ("restart", "stale")])
def test_lag_counts_from_the_weights_of_the_first_turn(on_lag: Any, status: str) -> None:
    policy = WeightsPolicy(max_version_lag=2, on_lag=on_lag)
    view = view_of(weights=policy)
    assert reached_limit(view, NOW, 99) is None, "no turn yet"
    view.apply(next(NUMBERS), stored_turn("t1", version=3))
    view.apply(next(NUMBERS), stored_turn("t2", version=5))
    assert reached_limit(view, NOW, 5) is None
    state = reached_limit(view, NOW, 6)
    assert state is not None
    assert (state.status, state.reason, state.run) == (status, "version_lag", 1)
    view.apply(next(NUMBERS), RolloutState(run=2))
    assert reached_limit(view, NOW, 6) is None, "the next run begins with the weights of now"
    view.apply(next(NUMBERS), stored_turn("t3", version=6, run=2))
    view.apply(next(NUMBERS), stored_turn("t4", version=0, run=2))
    state = reached_limit(view, NOW, 6)
    assert state is not None, "a worker that was started again has decoded a turn"
    assert state.reason == "version_lag"


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("finished", "finished"),
        ("aborted", "aborted"),
        ("restarted", "began before"),
        ("deleted", "deleted"),
        ("turns", "all of its turns"),
        ("output_tokens", "output tokens"),
        ("seconds", "time is over"),
        ("version_lag", "weights"),
    ],
)
def test_error_names_the_reason(why: str, text: str) -> None:
    error = ended_error(why)
    assert text in error.info.message
    assert error.info.code == "rollout_ended"


CLIENT = Sampling(
    max_tokens=500,
    min_tokens=1,
    temperature=0.1,
    top_p=0.2,
    top_k=3,
    min_p=0.4,
    seed=5,
    presence_penalty=0.6,
    frequency_penalty=0.7,
    repetition_penalty=1.8,
    stop=["x"],
    ignore_eos=True,
    stop_token_ids=[9],
    include_stop=True,
    logit_bias={1: 2.0},
)
OTHER: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 0.9,
    "top_k": -1,
    "min_p": 0.0,
    "seed": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
}


def decoded_with(sampling: RolloutSampling, **fields: Any) -> Sampling:
    view = view_of(sampling=sampling.as_sampling(), **fields)
    conversation = Conversation("m", [], sampling=CLIENT)
    return rollout_conversation(conversation, view, logprobs=False).sampling


def test_each_field_replaces_the_clients() -> None:
    fields = {*RolloutSampling.__struct_fields__} - {"max_tokens"}
    assert fields == {*OTHER}
    for name, value in OTHER.items():
        sampling = decoded_with(RolloutSampling(**{name: value}))
        expected = structs.replace(CLIENT, return_token_ids=True, **{name: value})
        assert sampling == expected, name


def test_turn_gets_the_least_limit_of_tokens() -> None:
    assert decoded_with(RolloutSampling()).max_tokens == 500
    assert decoded_with(RolloutSampling(max_tokens=900)).max_tokens == 500
    assert decoded_with(RolloutSampling(max_tokens=100)).max_tokens == 100
    limits = RolloutLimits(output_tokens=40)
    assert decoded_with(RolloutSampling(max_tokens=100), limits=limits).max_tokens == 40
    view = view_of(stored_turn("t1", output=[1] * 39), limits=limits)
    conversation = Conversation("m", [], sampling=Sampling())
    assert rollout_conversation(conversation, view, logprobs=False).sampling.max_tokens == 1


def test_turn_reports_tokens_and_log_probabilities() -> None:
    plain = Conversation("m", [], sampling=Sampling())
    view = view_of(weights=WeightsPolicy(any_weights=True))
    without = rollout_conversation(plain, view, logprobs=False)
    assert without.sampling == Sampling(return_token_ids=True)
    assert without.hints == Hints(any_weights=True)
    assert rollout_conversation(plain, view, logprobs=True).sampling.logprobs == 0
    asked = Conversation("m", [], sampling=Sampling(logprobs=5))
    assert rollout_conversation(asked, view, logprobs=True).sampling.logprobs == 5
    strict = rollout_conversation(plain, view_of(), logprobs=True)
    assert not strict.hints.any_weights
