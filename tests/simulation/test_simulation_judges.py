"""The judges: without faults nothing but an answer is allowed, and the time of faults is counted once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.clients import Outcome, Request
from simulation.faults import GRACE_S, Applied, Fault, Kind
from simulation.judges.answers import faulty_s
from simulation.judges.ends import EndJudge, Outages
from simulation.world import World


def request(outcome: Outcome, *, status: int = 200, problem: str = "", ended: float = 20.0) -> Request:
    reader = cast("Any", SimpleNamespace(answer=SimpleNamespace(blocks=["text"])))
    return Request("s0", 0, "frontend1", 10.0, ended, outcome, status, problem, readers=[reader])


def applied(kind: Kind, name: str, stage: str, began: float, ended: float) -> Applied:
    return Applied(Fault(began, kind, stage, 0, ended - began), name, stage, began, ended)


class NothingDown(Outages):
    def __init__(self) -> None:
        self.clustered = False
        self.samples = []


@pytest.mark.parametrize("outcome", ["broken", "refused", "error"])
def test_end_that_is_not_an_answer_is_forbidden_without_a_fault(outcome: Outcome) -> None:
    assert EndJudge([], NothingDown(), 20.0).forbidden(request(outcome, status=503))


@pytest.mark.parametrize("outcome", ["answer", "hung up", "pending"])
def test_ends_that_need_no_fault_are_allowed(outcome: Outcome) -> None:
    assert EndJudge([], NothingDown(), 20.0).forbidden(request(outcome)) == ""


def test_error_is_allowed_after_the_loss_of_worker_and_parser_and_not_after_one_of_them() -> None:
    both = [applied("kill", "worker1", "worker", 11.0, 12.0), applied("kill", "parser1", "parser", 13.0, 14.0)]
    assert EndJudge(both, NothingDown(), 20.0).forbidden(request("error")) == ""
    for one in both:
        assert EndJudge([one], NothingDown(), 20.0).forbidden(request("error"))


def test_broken_connection_is_allowed_only_where_its_own_frontend_ended() -> None:
    for name, is_allowed in (("frontend1", True), ("frontend2", False)):
        judge = EndJudge([applied("kill", name, "frontend", 11.0, 12.0)], NothingDown(), 20.0)
        assert (judge.forbidden(request("broken")) == "") == is_allowed


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6), st.integers(11, 60))
def test_time_of_faults_is_that_in_which_any_of_them_has_effects(spans: list[tuple[int, int]], ended: int) -> None:
    faults = [applied("cut", "worker1", "worker", began, began + seconds) for began, seconds in spans]
    steps = [10.5 + second for second in range(ended - 10)]
    counted = sum(any(began < at < began + seconds + GRACE_S for began, seconds in spans) for at in steps)
    assert faulty_s(request("answer", ended=float(ended)), faults) == pytest.approx(counted)


def test_outages_have_what_was_down_at_each_time() -> None:
    world = World(0, Path())
    try:
        outages = Outages(world)
        world.run(lambda: False, 2.0)
        assert outages.any(0.0, 2.0)
        assert outages.longest("bus", 0.0, 2.0) >= 1.5
        assert outages.longest("bus", 3.0, 4.0) == 0.0
    finally:
        world.close()
