"""The autoscaler's decisions, as the documentation of Kubernetes has them."""

import pytest

from tests.scaling.autoscaler import (
    DEFAULT_DOWN,
    DEFAULT_UP,
    Autoscaler,
    Policy,
    Rules,
    Target,
    evaluate,
    read_targets,
    scaled,
)

FREE = Rules(0.0, (Policy("Percent", 900, 15.0),))
AT_ONCE = Rules(0.0, (Policy("Percent", 100, 15.0),))


def autoscaler(
    up: Rules = FREE, down: Rules = AT_ONCE, fewest: int = 1, most: int = 100
) -> Autoscaler:
    return Autoscaler(Target("parser", fewest, most, up, down, "sum(x{})", 10.0))


@pytest.mark.parametrize(
    ("current", "value", "wanted"),
    [
        (2, 40, 4),
        (2, 41, 5),
        (2, 21, 2),
        (2, 23, 3),
        (4, 36, 4),
        (4, 35, 4),
        (4, 30, 3),
        (4, 0, 1),
        (90, 5000, 100),
    ],
)
def test_the_number_follows_the_value(current: int, value: float, wanted: int) -> None:
    assert autoscaler().decide(0.0, current, value) == wanted


def test_fewer_pods_only_after_the_window() -> None:
    one = autoscaler(down=Rules(300.0, AT_ONCE.policies))
    assert one.decide(0.0, 5, 50) == 5
    assert [one.decide(at, 5, 10) for at in (15.0, 150.0, 300.0)] == [5, 5, 5]
    assert one.decide(301.0, 5, 10) == 1


def test_more_pods_only_where_the_whole_window_wanted_them() -> None:
    one = autoscaler(up=Rules(60.0, FREE.policies))
    assert one.decide(0.0, 1, 10) == 1
    assert one.decide(30.0, 1, 50) == 1
    assert one.decide(61.0, 1, 40) == 4


def test_a_policy_limits_each_period() -> None:
    one = autoscaler(up=AT_ONCE, down=Rules(0.0, (Policy("Pods", 1, 60.0),)))
    assert one.decide(0.0, 2, 100) == 4
    assert one.decide(5.0, 4, 100) == 4
    assert one.decide(16.0, 4, 100) == 8
    assert one.decide(100.0, 8, 0) == 7
    assert one.decide(130.0, 7, 0) == 7
    assert one.decide(161.0, 7, 0) == 6


def test_the_default_doubles_or_adds_four() -> None:
    assert autoscaler(up=DEFAULT_UP).decide(0.0, 1, 1000) == 5
    assert autoscaler(up=DEFAULT_UP).decide(0.0, 10, 1000) == 20


def test_the_manifests_have_a_target_for_each_stage() -> None:
    targets = read_targets()
    assert set(targets) == {"frontend", "preprocessor", "parser", "worker"}
    assert {name for name, target in targets.items() if target.query} == {"parser", "worker"}
    assert targets["frontend"].per_pod == pytest.approx(0.6)
    assert targets["frontend"].up == DEFAULT_UP
    assert targets["worker"].down.window_s == DEFAULT_DOWN.window_s
    small = scaled(targets["parser"], divide=10, speed=20, most=3)
    assert (small.per_pod, small.most, small.down.window_s) == (
        targets["parser"].per_pod / 10,
        3,
        15.0,
    )


def test_a_query_adds_the_series_of_one_pod() -> None:
    worker = "turnwire_requests_running 3.0\nturnwire_requests_waiting 4.0\n"
    frontend = 'turnwire_requests_running{model="m"} 50.0\n'
    scrapes = {"worker-1": worker, "worker-2": worker, "frontend-1": frontend}
    both = 'sum(turnwire_requests_running{namespace="turnwire"} + turnwire_requests_waiting{namespace="turnwire"})'
    assert evaluate(both, scrapes) == 14
    assert evaluate('sum(turnwire_requests_waiting{namespace="other"})', scrapes) == 0
    with pytest.raises(ValueError, match="not a sum"):
        evaluate("rate(x[5m])", scrapes)
