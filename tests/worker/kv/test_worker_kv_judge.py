"""Predictions of what an engine finds in its cache, against what it found."""

from services.worker.kv.judge import MOST_WRONG, WATCHED_TURNS, PredictionJudge

SIZE = 4


def test_wrong_predictions_end_and_evicted_ones_do_not_count() -> None:
    judge = PredictionJudge(SIZE)
    for _ in range(3 * WATCHED_TURNS):
        judge.record(100, 100, removed=False)
        judge.record(100, 96, removed=False)  # one block
        judge.record(100, 0, removed=True)
        judge.record(0, 50, removed=False)
    for _ in range(MOST_WRONG):
        judge.record(100, 0, removed=False)
    assert not judge.objection
    judge.record(100, 0, removed=False)
    assert "5 of 16" in judge.objection
