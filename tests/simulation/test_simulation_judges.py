"""The judges of the simulation and the form in which answers of two runs are compared: without a
fault nothing but the answer is allowed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from simulation.canonical import canonical
from simulation.clients import Outcome, Request
from simulation.faults import GRACE_S, Applied, Fault, Kind
from simulation.judges.answers import faulty_s
from simulation.judges.ends import EndJudge, Outages


def request(
    outcome: Outcome, *, status: int = 200, problem: str = "", ended: float = 20.0
) -> Request:
    reader = cast("Any", SimpleNamespace(answer=SimpleNamespace(blocks=["text"])))
    return Request("s0", 0, "frontend1", 10.0, ended, outcome, status, problem, readers=[reader])


def applied(kind: Kind, name: str, began: float, ended: float) -> Applied:
    stage = name.rstrip("12")
    return Applied(Fault(began, kind, stage, 0, ended - began), name, stage, began, ended)


class WithoutWorker(Outages):
    """No worker is there from `began` on."""

    def __init__(self, began: float = 100.0) -> None:
        self.clustered = False
        gone, there = frozenset({"worker"}), frozenset[str]()
        times = [at / 4 for at in range(4 * 80)]
        self.samples = [(at, gone if began <= at < 60 else there) for at in times]


LOST_WORKER = applied("kill", "worker1", 11.0, 12.0)
LOST_PARSER = applied("kill", "parser1", 13.0, 14.0)


@pytest.mark.parametrize(
    ("outcome", "faults", "is_allowed"),
    [
        ("answer", [], True),
        ("hung up", [], True),
        ("broken", [], False),
        ("refused", [], False),
        ("error", [], False),
        ("error", [LOST_WORKER], False),
        ("error", [LOST_PARSER], False),
        ("error", [LOST_WORKER, LOST_PARSER], True),
        ("error", [applied("engine lies", "worker1", 11.0, 12.0)], True),
        ("broken", [applied("kill", "frontend1", 11.0, 12.0)], True),
        ("broken", [applied("kill", "frontend2", 11.0, 12.0)], False),
    ],
)
def test_end_is_allowed_after_its_faults_only(
    outcome: Outcome, faults: list[Applied], is_allowed: bool
) -> None:
    judge = EndJudge(faults, WithoutWorker(), 20.0)
    assert (judge.forbidden(request(outcome, status=503)) == "") == is_allowed


@pytest.mark.parametrize(("began", "verdict"), [(22, "refused too soon"), (0, "")])
def test_refusal_is_allowed_once_the_stage_was_away_for_long(began: int, verdict: str) -> None:
    judge = EndJudge([], WithoutWorker(began), 20.0)
    problem = "no worker serves this model at the moment"
    one = request("refused", status=503, problem=problem, ended=25.0)
    assert judge.forbidden(one) == verdict


def test_time_of_overlapping_faults_is_counted_once() -> None:
    faults = [applied("cut", "worker1", 12.0, 14.0), applied("cut", "worker1", 13.0, 16.0)]
    one = request("answer", ended=60.0)
    assert faulty_s(one, faults) == pytest.approx(4.0 + GRACE_S)


def delta(text: str) -> tuple[str, Any]:
    return "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}


def test_pieces_are_joined_and_others_differ() -> None:
    whole = canonical([delta("a"), delta("b"), ("ping", {}), delta("c")])
    assert whole == canonical([delta("ab"), delta("c")])
    for texts in ("abbc", "ac", "acb"):
        assert canonical([*map(delta, texts)]) != whole


def usage(uncached: int, cached: int, output: int) -> tuple[str, Any]:
    tokens = {"input_tokens": uncached, "cache_read_input_tokens": cached, "output_tokens": output}
    return "message_delta", {"usage": tokens}


def ids(first: str, second: str) -> list[tuple[str, Any]]:
    return [("added", {"item": {"id": first}}), ("done", {"item_id": second})]


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (ids("a", "a"), ids("b", "b"), ids("a", "b")),
        ([usage(9, 0, 2)], [usage(1, 8, 2)], [usage(2, 8, 2)]),
        ([usage(9, 0, 2)], [usage(1, 8, 2)], [usage(9, 0, 3)]),
        (
            [("item", {"encrypted_content": "x"})],
            [("item", {"encrypted_content": "y"})],
            [("item", {"encrypted_content": ""})],
        ),
    ],
    ids=("ids", "cached tokens", "output tokens", "seals"),
)
def test_only_what_may_differ_is_left_out(one: Any, same: Any, other: Any) -> None:
    assert canonical(one) == canonical(same) != canonical(other)
