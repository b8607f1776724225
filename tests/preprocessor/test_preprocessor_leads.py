"""Which turns wait for which, and for how long: single cases, and groups on simulated engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.preprocessor.routing.leads import MARGIN, MAX_HOLD_S, Lead, Leads, PendingPrompt

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

    def lead(self, one: PendingPrompt, worker: str = "w", held: int = 0) -> Lead:
        lead = self.leads.begin(one, worker, self.now)
        self.go_on(self.leads.record_accepted(lead, held, self.now))
        return lead

    def go_on(self, prompts: list[PendingPrompt]) -> None:
        self.gone_on += [prompt.turn for prompt in prompts]

    def waits_for(self, one: PendingPrompt, worker: str = "w") -> str | None:
        found = self.leads.find(one, worker, self.now)
        if found is None:
            return None
        self.go_on(self.leads.follow(one, found, self.now))
        return found.prompt.turn

    def end(self, lead: Lead, *, computed: bool) -> list[str]:
        self.gone_on.clear()
        self.go_on(self.leads.end(lead, computed=computed, now=self.now))
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
        assert trial.leads.record_accepted(lead, 0, trial.now) == []
        assert lead.has_ended, "its own tail is not worth waiting for"


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
    trial.go_on(trial.leads.record_accepted(lead, 20 * BLOCK, trial.now))
    assert trial.gone_on == ["b"]


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


def test_limit_is_twice_the_prefill_at_the_measured_speed() -> None:
    trial = Trial()
    first = trial.lead(prompt("a", GROUP))
    assert trial.leads.limit_s(first) == MAX_HOLD_S, "the speed is unknown"
    trial.now += 0.5
    trial.end(first, computed=True)
    second = trial.lead(prompt("b", ("other", 20)))
    assert trial.leads.limit_s(second) == pytest.approx(MARGIN * 0.5)


EVENTS = st.sampled_from(["arrives", "arrives", "computed", "fails", "gives up"])


@given(st.lists(st.tuples(EVENTS, st.integers(0, 99)), max_size=80))
def test_every_turn_goes_on_and_no_lead_or_follower_is_left(events: list[tuple[str, int]]) -> None:
    """Turns of two groups on two workers; a follower that goes on is placed again."""
    trial = Trial()
    held: dict[str, PendingPrompt] = {}
    open_leads: list[Lead] = []

    def place(one: PendingPrompt, worker: str) -> None:
        if trial.waits_for(one, worker) is not None:
            held[one.turn] = one
            return
        lead = trial.leads.begin(one, worker, trial.now)
        prompts = trial.leads.record_accepted(lead, 0, trial.now)
        if not lead.has_ended:
            open_leads.append(lead)
        go_on(prompts, worker)

    def go_on(prompts: list[PendingPrompt], worker: str) -> None:
        for one in prompts:
            place(held.pop(one.turn), worker)

    def end(lead: Lead, computed: bool) -> None:
        open_leads.remove(lead)
        go_on(trial.leads.end(lead, computed=computed, now=trial.now), lead.worker)

    for number, (event, which) in enumerate(events):
        trial.now += 0.1
        if event == "arrives":
            group = (f"group {which % 2}", 20)
            place(prompt(f"{number}", group, (f"{number}", which)), f"w{which // 2 % 2}")
        elif event == "gives up" and held:
            one = held.pop([*held][which % len(held)])
            trial.leads.leave(one)
        elif open_leads and event != "gives up":
            end(open_leads[which % len(open_leads)], event == "computed")
        assert sum(trial.leads.waiting.values()) == len(held)
    while open_leads:
        end(open_leads[0], computed=False)
    assert held == {}
    assert not +trial.leads.waiting
