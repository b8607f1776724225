"""The autoscaler's decisions, as the documentation of Kubernetes has them."""

import pytest

from tests.scaling.autoscaler import (
    DEFAULT_DOWN,
    DEFAULT_UP,
    Autoscaler,
    Policy,
    Rules,
    Target,
    read_targets,
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
        *((2, 40, 4), (2, 41, 5), (2, 21, 2), (2, 23, 3)),
        *((4, 36, 4), (4, 35, 4), (4, 30, 3), (4, 0, 1)),
        (90, 5000, 100),
    ],
)
def test_number_follows_the_value(current: int, value: float, wanted: int) -> None:
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


def test_policy_limits_each_period() -> None:
    one = autoscaler(up=AT_ONCE, down=Rules(0.0, (Policy("Pods", 1, 60.0),)))
    assert one.decide(0.0, 2, 100) == 4
    assert one.decide(5.0, 4, 100) == 4
    assert one.decide(16.0, 4, 100) == 8
    assert one.decide(100.0, 8, 0) == 7
    assert one.decide(130.0, 7, 0) == 7
    assert one.decide(161.0, 7, 0) == 6


def test_default_doubles_or_adds_four() -> None:
    assert autoscaler(up=DEFAULT_UP).decide(0.0, 1, 1000) == 5
    assert autoscaler(up=DEFAULT_UP).decide(0.0, 10, 1000) == 20


def test_manifests_have_a_target_for_each_stage() -> None:
    targets = read_targets()
    assert set(targets) == {"frontend", "preprocessor", "parser", "worker"}
    assert {name for name, target in targets.items() if target.query} == {"parser", "worker"}
    assert targets["frontend"].per_pod == pytest.approx(0.6)
    assert targets["frontend"].up == DEFAULT_UP
    assert targets["worker"].down.window_s == DEFAULT_DOWN.window_s


@pytest.mark.parametrize("stage", ["frontend", "preprocessor", "parser", "worker"])
def test_stage_follows_a_load_by_its_manifest(stage: str) -> None:
    target = read_targets()[stage]
    one, count = Autoscaler(target), target.fewest
    most = min(target.most, target.fewest + 3)
    for step in range(40):  # ten minutes
        count = one.decide(step * 15.0, count, most * target.per_pod)
    assert count == most
    for step in range(40, 160):
        count = one.decide(step * 15.0, count, 0.0)
    assert count == target.fewest
