"""What a frontend knows of a rollout: the sum of its records."""

from itertools import count

from schemas.events import PromptImage
from services.frontend.rollouts.view import RolloutView
from services.rollouts.rollout import Rewards, Rollout, RolloutState
from tests.frontend.rollouts.records import failed_turn, open_turn, stored_turn

NUMBERS = count(2)


def new_view() -> RolloutView:
    return RolloutView(Rollout("ro_1", 1.0, None), 1)


def test_turn_is_open_until_its_record() -> None:
    view = new_view()
    view.apply(next(NUMBERS), open_turn("t1"))
    view.apply(next(NUMBERS), open_turn("t2", frontend="frontend-2"))
    view.apply(next(NUMBERS), open_turn("t3"))
    assert [turn.frontend for turn in view.open_turns] == ["frontend-1", "frontend-2", "frontend-1"]
    assert len(view.turns_with_tokens) == 0
    view.apply(next(NUMBERS), stored_turn("t2", output=[1, 2, 3], version=4))
    view.apply(next(NUMBERS), failed_turn("t3"))
    assert (len(view.turns_with_tokens), len(view.open_turns), view.output_tokens) == (1, 1, 3)
    assert view.versions == [4]
    assert "t1" in view.turns
    assert "t9" not in view.turns


def test_restart_leaves_the_turns_of_earlier_runs_out() -> None:
    view = new_view()
    view.apply(next(NUMBERS), stored_turn("t1", version=2))
    view.apply(next(NUMBERS), open_turn("t2"))
    view.apply(next(NUMBERS), RolloutState(run=2))
    assert (view.turns, view.output_tokens, view.versions) == ({}, 0, [])
    assert "t1" not in view.turns
    view.apply(next(NUMBERS), stored_turn("t2", run=1))
    assert len(view.turns_with_tokens) == 0, "a turn of the first run that ended late"
    view.apply(next(NUMBERS), stored_turn("t3", run=2, version=3))
    assert (len(view.turns_with_tokens), view.versions) == (1, [3])


def test_state_rewards_and_images_are_the_newest() -> None:
    view = new_view()
    assert (view.state, view.rewards) == (RolloutState(), Rewards())
    view.apply(next(NUMBERS), RolloutState("finished", ended=3.0))
    view.apply(next(NUMBERS), Rewards(reward=0.5))
    view.apply(next(NUMBERS), Rewards(1, 1.0, {"t1": 0.25}))
    view.apply(next(NUMBERS), stored_turn("t1", images=[PromptImage("abc", 1, 1)]))
    assert view.state.status == "finished"
    assert view.rewards == Rewards(1, 1.0, {"t1": 0.25})
    assert view.has_image("abc")
    assert not view.has_image("abd")


def test_record_may_be_applied_twice() -> None:
    view = new_view()
    for _ in range(2):
        view.apply(next(NUMBERS), stored_turn("t1", output=[1, 2]))
    assert (len(view.turns_with_tokens), view.output_tokens) == (1, 2)


def test_what_this_frontend_writes_counts_before_it_is_read() -> None:
    view = new_view()
    view.note(open_turn("t1"))
    assert len(view.open_turns) == 1
    view.note(stored_turn("t1", output=[1, 2]))
    assert (view.open_turns, view.output_tokens, view.is_writing) == ([], 2, True)
    view.apply(next(NUMBERS), open_turn("t1"))
    assert (view.open_turns, view.output_tokens) == ([], 2), "the older record is read later"
    view.apply(next(NUMBERS), stored_turn("t1", output=[1, 2]))
    assert (view.output_tokens, view.is_writing) == (2, False)


def test_state_of_an_earlier_run_does_not_undo_a_restart() -> None:
    view = new_view()
    view.apply(next(NUMBERS), RolloutState(run=2))
    view.apply(next(NUMBERS), RolloutState("ended", run=1))
    assert view.state.status == "open"


def test_turns_that_began_before_another_one() -> None:
    view = new_view()
    for name in ("t1", "t2", "t3"):
        view.apply(next(NUMBERS), open_turn(name))
    view.note(open_turn("t4"))
    before = [[*view.began_before(name)] for name in ("t1", "t2", "t3", "t4")]
    assert before == [[], ["t1"], ["t1", "t2"], ["t1", "t2", "t3"]]
    view.apply(next(NUMBERS), failed_turn("t2"))
    assert [*view.began_before("t3")] == ["t1"]


def test_rewards_are_of_a_run() -> None:
    view = new_view()
    view.apply(next(NUMBERS), Rewards(1, 5.0))
    view.apply(next(NUMBERS), RolloutState(run=2))
    assert view.rewards == Rewards(2)
