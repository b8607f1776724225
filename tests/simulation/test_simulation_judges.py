"""The judges: without faults nothing but an answer is allowed, and the time of faults is counted
once."""

from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.clients import Outcome, Request
from simulation.faults import GRACE_S, Applied, Fault, Kind
from simulation.judges.answers import faulty_s
from simulation.judges.ends import EndJudge, Outages
from simulation.world import STAGES


def request(
    outcome: Outcome, *, status: int = 200, problem: str = "", ended: float = 20.0
) -> Request:
    reader = cast("Any", SimpleNamespace(answer=SimpleNamespace(blocks=["text"])))
    return Request("s0", 0, "frontend1", 10.0, ended, outcome, status, problem, readers=[reader])


def applied(kind: Kind, name: str, stage: str, began: float, ended: float) -> Applied:
    return Applied(Fault(began, kind, stage, 0, ended - began), name, stage, began, ended)


class NothingDown(Outages):
    def __init__(self, *, without_worker: tuple[int, int] = (0, 0)) -> None:
        self.clustered = False
        began, ended = without_worker
        down = frozenset({"worker"}), frozenset[str]()
        self.samples = [(at / 4, down[not began <= at / 4 < ended]) for at in range(4 * 80)]


@st.composite
def faults(draw: st.DrawFn) -> Applied:
    kind = draw(st.sampled_from(get_args(Kind)))
    stage = draw(st.sampled_from((*STAGES, "")))
    began, seconds = draw(st.integers(0, 60)), draw(st.integers(0, 30))
    amount = draw(st.sampled_from((0.2, 1.0)))
    fault = Fault(began, kind, stage, 0, seconds, amount)
    return Applied(fault, stage and f"{stage}1", stage, began, began + seconds)


@pytest.mark.parametrize("outcome", ["broken", "refused", "error"])
def test_end_that_is_not_an_answer_is_forbidden_without_a_fault(outcome: Outcome) -> None:
    assert EndJudge([], NothingDown(), 20.0).forbidden(request(outcome, status=503))


@pytest.mark.parametrize("outcome", ["answer", "hung up", "pending"])
def test_ends_that_need_no_fault_are_allowed(outcome: Outcome) -> None:
    assert EndJudge([], NothingDown(), 20.0).forbidden(request(outcome)) == ""


@pytest.mark.parametrize(("began", "verdict"), [(22, "refused too soon"), (0, "")])
def test_refusal_is_allowed_once_the_stage_was_away_for_long(began: int, verdict: str) -> None:
    judge = EndJudge([], NothingDown(without_worker=(began, 60)), 20.0)
    problem = "no worker serves this model at the moment"
    one = request("refused", status=503, problem=problem, ended=25.0)
    assert judge.forbidden(one) == verdict


def test_error_is_allowed_after_the_loss_of_worker_and_parser_and_not_after_one_of_them() -> None:
    both = [
        applied("kill", "worker1", "worker", 11.0, 12.0),
        applied("kill", "parser1", "parser", 13.0, 14.0),
    ]
    assert EndJudge(both, NothingDown(), 20.0).forbidden(request("error")) == ""
    for one in both:
        assert EndJudge([one], NothingDown(), 20.0).forbidden(request("error"))


def test_broken_connection_is_allowed_only_where_its_own_frontend_ended() -> None:
    for name, is_allowed in (("frontend1", True), ("frontend2", False)):
        judge = EndJudge([applied("kill", name, "frontend", 11.0, 12.0)], NothingDown(), 20.0)
        assert (judge.forbidden(request("broken")) == "") == is_allowed


@given(
    st.lists(faults(), max_size=3),
    faults(),
    st.sampled_from(["broken", "refused", "error"]),
    st.sampled_from(["any", "no worker serves this model at the moment"]),
    st.tuples(st.integers(0, 60), st.integers(0, 80)),
    st.integers(10, 79),
)
def test_one_more_fault_forbids_nothing(
    some: list[Applied],
    more: Applied,
    outcome: Outcome,
    problem: str,
    outage: tuple[int, int],
    ended: int,
) -> None:
    outages = NothingDown(without_worker=outage)
    one = request(outcome, status=503, problem=problem, ended=float(ended))
    if not EndJudge(some, outages, 20.0).forbidden(one):
        assert not EndJudge([*some, more], outages, 20.0).forbidden(one)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6), st.integers(11, 60))
def test_time_of_faults_is_that_in_which_any_of_them_has_effects(
    spans: list[tuple[int, int]], ended: int
) -> None:
    faults = [
        applied("cut", "worker1", "worker", began, began + seconds) for began, seconds in spans
    ]
    steps = [10.5 + second for second in range(ended - 10)]
    counted = sum(
        any(began < at < began + seconds + GRACE_S for began, seconds in spans) for at in steps
    )
    assert faulty_s(request("answer", ended=float(ended)), faults) == pytest.approx(counted)
