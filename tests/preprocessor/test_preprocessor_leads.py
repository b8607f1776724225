"""Which turns wait for which, and for how long: single cases, and groups on simulated engines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.preprocessor.routing.leads import (
    MARGIN,
    MAX_HOLD_S,
    GoOn,
    HoldAction,
    Lead,
    LeadEnded,
    Leads,
    PendingPrompt,
)
from tests.preprocessor.groups import Deployment, Shape, draw, simulate

BLOCK = 16
HOLD = 64


def prompt(turn: str, *parts: tuple[str, int], priority: float = 0.0) -> PendingPrompt:
    """`parts`: a name, and the number of its blocks."""
    keys: list[int] = []
    for name, blocks in parts:
        keys += [hash((*keys[-1:], name, block)) for block in range(blocks)]
    return PendingPrompt(
        turn=turn, tokens=len(keys) * BLOCK + 3, keys=keys, block_tokens=BLOCK, priority=priority
    )


class Trial:
    """Leads at a time that the test sets, and who went on."""

    def __init__(self) -> None:
        self.leads = Leads(HOLD)
        self.now = 100.0
        self.gone_on: list[str] = []

    def lead(
        self, one: PendingPrompt, worker: str = "w", held: int = 0, late_s: float = 0.0
    ) -> Lead:
        lead = self.leads.begin(one, worker, self.now)
        self.now += late_s
        self.act(self.leads.record_accepted(lead, held, self.now))
        return lead

    def act(self, actions: list[HoldAction]) -> None:
        self.gone_on += [action.prompt.turn for action in actions if isinstance(action, GoOn)]

    def waits_for(self, one: PendingPrompt, worker: str = "w") -> str | None:
        found = self.leads.find(one, worker, self.now)
        if found is None:
            return None
        self.act(self.leads.follow(one, found, self.now))
        return found.prompt.turn

    def end(self, lead: Lead, *, computed: bool) -> list[str]:
        self.gone_on.clear()
        self.act(self.leads.end(lead, computed=computed, now=self.now))
        return self.gone_on


GROUP = ("group", 20)


def test_followers_of_a_computed_prefix_go_on_in_order_and_wait_for_nobody() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP, ("a", 2)))
    others = [prompt(name, GROUP, (name, 2)) for name in "bcd"]
    assert [trial.waits_for(one) for one in others] == ["a"] * 3
    assert trial.end(first, computed=True) == ["b", "c", "d"]
    for one in others:
        assert trial.waits_for(one) is None
        lead = trial.leads.begin(one, "w", trial.now)
        ended = trial.leads.record_accepted(lead, 0, trial.now)
        assert ended == [LeadEnded(lead)], "its own tail is not worth waiting for"


def test_first_follower_leads_after_a_lead_that_failed() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP, ("a", 2)))
    second, third = prompt("b", GROUP, ("b", 2)), prompt("c", GROUP, ("c", 2))
    assert (trial.waits_for(second), trial.waits_for(third)) == ("a", "a")
    assert trial.end(first, computed=False) == ["b"]
    assert trial.waits_for(second) is None
    lead = trial.lead(second)
    assert (third.held_for, trial.leads.waiting["w"]) == ("b", 1), "it has not been asked"
    assert trial.end(lead, computed=True) == ["c"]
    assert not +trial.leads.waiting


def test_followers_of_a_turn_that_goes_no_further_wait_for_the_next_one() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP, ("a", 2)))
    second, third, last = (prompt(name, GROUP, (name, 2)) for name in "bcd")
    assert [trial.waits_for(one) for one in (second, third, last)] == ["a"] * 3
    trial.end(first, computed=False)
    trial.act(trial.leads.pass_on(second))  # it is cancelled
    assert trial.gone_on == ["b", "c"]
    other = trial.lead(prompt("e", GROUP, ("e", 2)))  # came in between
    assert trial.waits_for(third) == "e"
    assert trial.gone_on == ["b", "c", "d"]
    assert trial.waits_for(last) == "e"
    assert trial.end(other, computed=True) == ["c", "d"]


def test_next_lead_holds_none_that_would_not_have_chosen_it() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP, ("inner", 9)))
    long, short = prompt("b", GROUP, ("b", 200)), prompt("c", GROUP, ("c", 2))
    alike = prompt("d", GROUP, ("b", 200), ("d", 1))
    assert [trial.waits_for(one) for one in (long, short, alike)] == ["a"] * 3
    trial.end(first, computed=False)
    trial.lead(long)
    assert trial.gone_on == ["b", "c"], "the long one computes 200 blocks more"
    assert alike.waits_for is long


def test_next_lead_is_the_first_with_the_highest_priority() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP, priority=1))
    for name, priority in zip("bcde", (-1, 0, 1, 1), strict=True):
        assert trial.waits_for(prompt(name, GROUP, priority=priority)) == "a"
    assert trial.end(first, computed=False) == ["d"]


@given(
    st.lists(st.sampled_from(["refused", "fails", "gives up", "elsewhere"]), max_size=60),
    st.integers(1, 60),
)
def test_turns_of_a_group_that_fail_one_after_the_other_go_on_once_each(
    ends: list[str], size: int
) -> None:
    """Each turn is sent to a worker that refuses it or lets it fail, or to another worker, or is
    cancelled."""
    trial = Trial()
    turns = [prompt(f"{number}", GROUP, ("tail", 2)) for number in range(size)]
    lead = trial.lead(prompt("first", GROUP, ("tail", 2)))
    assert {trial.waits_for(one) for one in turns} == {"first"}
    trial.act(trial.leads.end(lead, computed=False, now=trial.now))
    for number, turn in enumerate(turns):
        assert trial.gone_on == [one.turn for one in turns[: number + 1]], "in order, one at a time"
        end = ends[number] if number < len(ends) else "refused"
        if end == "gives up":
            trial.act(trial.leads.pass_on(turn))
            continue
        worker = "v" if end == "elsewhere" else "w"
        lead = trial.leads.begin(turn, worker, trial.now)
        assert (
            trial.leads.waiting == Counter({worker: size - number - 1}) or not +trial.leads.waiting
        )
        if end != "refused":
            assert LeadEnded(lead) not in trial.leads.record_accepted(lead, 0, trial.now)
        trial.act(trial.leads.end(lead, computed=False, now=trial.now))
    assert not +trial.leads.waiting


def test_only_new_shared_tokens_count() -> None:
    trial = Trial()
    trial.lead(prompt("a", GROUP, ("a", 8)), held=18 * BLOCK)
    assert trial.waits_for(prompt("b", GROUP, ("b", 8))) is None, "two blocks of the group are new"
    assert trial.waits_for(prompt("c", GROUP, ("a", 8), ("c", 1))) == "a"


def test_acceptance_with_a_held_prefix_continues_those_that_gain_nothing_any_more() -> None:
    trial = Trial()
    first = prompt("a", GROUP, ("a", 8))
    lead = trial.leads.begin(first, "w", trial.now)
    assert trial.waits_for(prompt("b", GROUP, ("b", 8))) == "a"
    assert trial.waits_for(prompt("c", GROUP, ("a", 8), ("c", 1))) == "a"
    trial.act(trial.leads.record_accepted(lead, 20 * BLOCK, trial.now))
    assert trial.gone_on == ["b"]


def test_groups_within_a_group_wait_for_their_own_lead() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP, ("x", 8), ("a", 1)))
    one, other = prompt("b", GROUP, ("y", 8), ("b", 1)), prompt("c", GROUP, ("y", 8), ("c", 1))
    assert (trial.waits_for(one), trial.waits_for(other)) == ("a", "a")
    trial.end(first, computed=True)
    assert trial.waits_for(one) is None
    trial.lead(one)
    assert trial.waits_for(other) == "b", "the eight blocks of y are new, too"


def test_higher_priority_is_not_held_behind_a_lower_one() -> None:
    trial = Trial()
    trial.lead(prompt("a", GROUP, ("a", 2), priority=-1))
    urgent = prompt("b", GROUP, ("b", 2))
    assert trial.waits_for(urgent) is None
    assert trial.waits_for(prompt("c", GROUP, ("c", 2), priority=-1)) == "a"
    trial.lead(urgent)
    assert trial.waits_for(prompt("d", GROUP, ("d", 2))) == "b"


def test_lead_on_another_worker_holds_nobody_and_counts_in_the_choice_of_a_worker() -> None:
    trial = Trial()
    trial.lead(prompt("a", GROUP, ("a", 2)), "w")
    other = prompt("b", GROUP, ("b", 2))
    assert trial.waits_for(other, "v") is None
    assert trial.leads.computing(other) == {"w": 20 * BLOCK}


def test_nobody_waits_for_a_prompt_that_is_mostly_another_s() -> None:
    trial = Trial()
    trial.lead(prompt("a", GROUP, ("a", 200)))
    assert trial.waits_for(prompt("b", GROUP, ("b", 2))) is None
    assert trial.waits_for(prompt("c", GROUP, ("c", 190))) == "a"


def test_fewest_tokens_need_not_be_whole_blocks() -> None:
    trial = Trial()
    trial.leads = Leads(50)
    trial.lead(prompt("a", ("group", 3), ("a", 2)))
    trial.lead(prompt("b", ("other", 4), ("b", 2)))
    assert trial.waits_for(prompt("c", ("group", 3), ("c", 2))) is None, "48 tokens"
    assert trial.waits_for(prompt("d", ("other", 4), ("d", 2))) == "b"


def test_limit_is_twice_the_prefill_at_the_measured_speed() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP))
    assert trial.leads.limit_s(first) == MAX_HOLD_S, "the speed is unknown"
    trial.now += 0.5
    trial.end(first, computed=True)
    second = trial.lead(prompt("b", ("other", 20)))
    assert trial.leads.limit_s(second) == pytest.approx(MARGIN * 0.5)
    trial.now += 1.0
    trial.end(second, computed=False)
    assert trial.leads.limit_s(trial.lead(prompt("c", ("more", 20)))) == pytest.approx(
        MARGIN * 1.0
    ), "it was slower"
    trial.leads.speeds.clear()
    assert trial.leads.limit_s(trial.lead(prompt("d", ("last", 20)))) == MAX_HOLD_S


def test_acceptance_that_is_read_late_does_not_make_a_worker_look_faster() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP), late_s=0.4)
    trial.now += 0.1
    trial.end(first, computed=True)
    assert trial.leads.limit_s(trial.lead(prompt("b", ("other", 20)))) == pytest.approx(
        MARGIN * 0.5
    )


@given(lost=st.integers(1, 3), prefill_s=st.floats(0.1, 4.0), share=st.floats(0.0, 1.0))
def test_followers_of_leads_without_an_end_wait_for_the_next_one(
    lost: int, prefill_s: float, share: float
) -> None:
    """Leads whose worker dies: it is declared dead after their limit, or shortly before."""
    trial = Trial()
    for worker in ("w0", "w1", "w2", "w3"):  # all speeds are known
        lead = trial.lead(prompt(f"before {worker}", (worker, 20)), worker)
        trial.now += prefill_s
        trial.end(lead, computed=True)
    others = [prompt(name, GROUP) for name in "bcdef"]
    lead = trial.lead(prompt("a", GROUP), "w0")
    assert {trial.waits_for(one, "w0") for one in others} == {lead.prompt.turn}
    for number in range(lost):
        trial.now += trial.leads.limit_s(lead) * (0.5 + share / 2)
        assert trial.end(lead, computed=False) == [others[0].turn]
        lead = trial.lead(others.pop(0), f"w{number + 1}")
        assert {one.held_for for one in others} == {lead.prompt.turn}


@given(st.floats(0.0, MAX_HOLD_S), st.lists(st.floats(0.0, 20.0), max_size=20))
def test_any_number_of_leads_hold_a_turn_no_longer_than_its_bound(
    hold_s: float, leads: list[float]
) -> None:
    """`hold_s`: what earlier attempts left of the bound. Each lead is sent, and ends, some time
    after the one before."""
    trial = Trial()
    last = prompt("z", GROUP, ("z", 2))
    last.hold_s = hold_s
    held_at, until = None, trial.now
    for number, seconds in enumerate(leads):
        one = trial.lead(prompt(f"a{number}", GROUP, (f"a{number}", 2)))
        if last.waits_for is None:
            if trial.waits_for(last) is None:
                assert trial.now >= until
                break
            held_at = trial.now if held_at is None else held_at
            until = held_at + hold_s
        assert last.hold_until(trial.now) == until
        trial.now += seconds
        if trial.now >= until:
            trial.leads.leave(last)  # as the caller's timer
        trial.end(one, computed=False)


@given(
    st.lists(st.tuples(st.integers(4, 500), st.floats(0.0, 60.0), st.booleans()), max_size=20),
    st.integers(4, 500),
)
def test_time_in_a_worker_s_queue_never_makes_a_limit_shorter(
    earlier: list[tuple[int, float, bool]], blocks: int
) -> None:
    """The limit is at least the margin times the prefill at the worker's real speed, whatever its
    queue was like."""
    trial, speed = Trial(), 1000.0
    for number, (size, queued_s, fails) in enumerate(earlier):
        one = trial.lead(prompt(f"{number}", (f"{number}", size)))
        trial.now += queued_s + one.prompt.tokens / speed
        trial.end(one, computed=not fails)
    last = trial.lead(prompt("last", ("last", blocks)))
    assert (
        min(MARGIN * last.prompt.tokens / speed, MAX_HOLD_S) - 1e-6
        <= trial.leads.limit_s(last)
        <= MAX_HOLD_S
    )


def test_limit_follows_the_speed_again_when_the_queue_is_gone() -> None:
    trial = Trial()
    for number, queued_s in enumerate((20.0, 0.0, 0.0, 0.0, 0.0, 0.0)):
        one = trial.lead(prompt(f"{number}", (f"{number}", 20)))
        trial.now += queued_s + 0.5
        trial.end(one, computed=True)
    assert trial.leads.limit_s(trial.lead(prompt("last", ("last", 20)))) < MARGIN * 0.5 * 1.05


@pytest.mark.parametrize("together", [True, False], ids=["one group", "groups in a group"])
def test_each_further_lead_costs_a_few_comparisons(together: bool) -> None:
    class CountedKeys(list[int]):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            CountedKeys.reads += 1
            return super().__getitem__(at)

    def counted(number: int) -> PendingPrompt:
        made = prompt(
            f"{number}", GROUP, ("inner" if together else f"inner {number}", 200), (f"{number}", 2)
        )
        return replace(made, keys=CountedKeys(made.keys))

    leads = Leads(HOLD)
    for number in range(200):
        leads.begin(counted(number), f"w{number % 2}", 0.0)
    last = counted(200)
    CountedKeys.reads = 0
    assert leads.computing(last) == dict.fromkeys(("w0", "w1"), (220 if together else 20) * BLOCK)
    assert leads.find(last, "w1", 0.0) is not None
    assert CountedKeys.reads < 1000


@given(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.integers(1, 8 * BLOCK))
def test_prompts_share_what_they_begin_with(common: int, one: int, other: int, tokens: int) -> None:
    first, second = (
        prompt("a", ("group", common), ("a", one)),
        prompt("b", ("group", common), ("b", other)),
    )
    assert first.shared(second) == common * BLOCK
    assert first.shares(second, tokens) == (first.shared(second) >= tokens)


SHAPES = st.builds(
    Shape,
    sessions=st.integers(2, 40),
    workers=st.integers(1, 3),
    slots=st.sampled_from((2, 16, 256)),
    kind=st.sampled_from(("queue", "together", "late")),
    speed=st.sampled_from((2000.0, 20_000.0, 1e9)),
    span_s=st.sampled_from((0.01, 5.0, 100.0)),
    most=st.integers(1, 16),
    trouble=st.sampled_from((0.0, 0.2, 0.7)),
    priorities=st.sampled_from(((0.0,), (0.0, 0.0, 1.0, -1.0))),
)


@given(SHAPES, st.integers(0, 2**32))
def test_every_turn_goes_on_and_none_is_held_longer_than_the_limit(shape: Shape, seed: int) -> None:
    deployment = Deployment(shape, draw(shape, seed))
    result = deployment.run()
    assert all(turn.first_at >= turn.arrived for turn in result.turns), "a turn waits for ever"
    assert max(turn.held_s for turn in result.turns) <= MAX_HOLD_S + 1e-6
    assert not deployment.left, "leads or followers are left"


@given(SHAPES, st.integers(0, 2**32))
def test_holding_does_not_compute_more(shape: Shape, seed: int) -> None:
    shape = replace(shape, trouble=0.0)
    assert (
        simulate(shape, seed).computed
        <= simulate(replace(shape, hold_tokens=0), seed).computed * 1.02
    )


@settings(deadline=None)
@given(st.sampled_from((1, 2, 8)), st.integers(0, 2**32))
def test_group_on_an_idle_deployment_is_computed_once(workers: int, seed: int) -> None:
    shape = Shape(sessions=8, workers=workers, most=1, span_s=0.01, slots=256)
    turns = draw(shape, seed)
    shared: Sequence[int] = range(1, 1000)
    for turn in turns:
        turn.keys = [*shared, *turn.keys[-10:]]
    result = Deployment(shape, turns).run()
    assert result.computed <= 1.15 * turns[0].tokens


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["queue", "together"])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_thousand_sessions_take_no_longer_with_holding(kind: str, workers: int) -> None:
    for seed in range(3):
        shape = Shape(sessions=1000, workers=workers, kind=kind, span_s=2000.0 / workers)  # type: ignore[arg-type]
        on, off = simulate(shape, seed), simulate(replace(shape, hold_tokens=0), seed)
        assert on.total_s <= 1.02 * off.total_s
        assert on.end_s <= 1.02 * off.end_s
