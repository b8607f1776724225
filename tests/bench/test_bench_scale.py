"""The model of streams per core: the line that is fitted, and what it predicts."""

import pytest

from bench.cpu import Cost
from bench.rows import Case, Row
from bench.scale import StepCost, costs_table, fit, predicted, step_costs


def row(streams: int, us_per_token: dict[str, float]) -> Row:
    tokens = streams * 1000
    cost = Cost({name: us * tokens / 1e6 for name, us in us_per_token.items()}, 0.0, 0.0)
    case = Case("hold", "messages", "keepalive", clients=streams, delay_ms=10.0, tokens=1000)
    return Row(
        case=case,
        requests=streams,
        failed=0,
        errors={},
        wall_s=10.0,
        tokens=tokens,
        events=tokens,
        prompt_tokens=None,
        tokens_per_s=0.0,
        bytes_per_token=0.0,
        first_ttft_ms=None,
        ttft_ms=None,
        first_byte_ms=None,
        itl_ms=None,
        gap_ms=None,
        worst_gap_ms=None,
        send_lag_ms=None,
        cost=cost,
        memory={},
    )


def of_line(streams: int, step: float, token: float) -> float:
    return (step + token * streams) / streams


def test_the_fit_separates_the_step_from_the_token() -> None:
    found = fit({streams: 150 + 7 * streams for streams in (16, 64, 256)})
    assert [found.step, found.token] == pytest.approx([150, 7])


def test_rows_give_the_cost_of_each_stage_and_others_are_left_out() -> None:
    stages = {
        "frontend": (160.0, 8.0),
        "parser": (200.0, 1.5),
        "worker": (170.0, 2.0),
        "nats": (190.0, 0.5),
    }
    rows = [
        row(
            streams,
            {stage: of_line(streams, *line) for stage, line in stages.items()} | {"up": 1.0},
        )
        for streams in (16, 64, 256)
    ]
    costs = step_costs(rows)
    assert list(costs) == list(stages)
    for stage, line in stages.items():
        assert [costs[stage].step, costs[stage].token] == pytest.approx(line)
    assert "| frontend | 160 | 8.0 | 18.0 | 10.5 | 8.6 | 1,230 |" in costs_table(costs, rows)


def test_the_stage_at_its_limit_decides_and_more_processes_of_another_do_not_help() -> None:
    costs = {"frontend": StepCost(200, 8), "parser": StepCost(200, 2)}
    assert predicted(costs, 1, 1, 0.12) == predicted(costs, 1, 4, 0.12) == (1200 - 200) / 8
    assert predicted(costs, 2, 1, 0.12) == 2 * predicted(costs, 1, 1, 0.12)
    assert predicted(costs, 8, 1, 0.12) == (1200 - 200) / 2


def test_a_share_that_a_step_takes_whole_carries_no_streams() -> None:
    assert StepCost(2000, 8).streams(0.12) == 0
