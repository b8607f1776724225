"""Who is there."""

import math

from schemas.control import Beat, ModelCard
from services.runtime.registry import Registry


def beat(process: str, *, stage: str = "worker", **fields: object) -> Beat:
    return Beat(stage=stage, id=process, **fields)  # type: ignore[arg-type]


def test_silence_is_death_and_a_last_beat_is_too() -> None:
    registry = Registry(dead_after_s=3.0)
    left: list[str] = []
    registry.on_leave(lambda b: left.append(b.id))
    assert registry.heard(beat("a"), 0.0)
    assert not registry.heard(beat("a"), 2.0)
    registry.heard(beat("b"), 2.0)
    assert registry.sweep(5.0) == []
    assert [b.id for b in registry.sweep(5.1)] == ["a", "b"]
    registry.heard(beat("c"), 6.0)
    registry.heard(beat("c", leaving=True), 6.5)
    assert left == ["a", "b", "c"]
    assert list(registry.living("worker")) == []


def test_a_last_beat_of_a_stranger_is_nothing() -> None:
    registry = Registry(3.0)
    left: list[Beat] = []
    registry.on_leave(left.append)
    assert not registry.heard(beat("x", leaving=True), 0.0)
    assert left == []


def test_only_those_who_take_work_for_the_model_are_able() -> None:
    registry = Registry(3.0)
    registry.heard(beat("a", models=[ModelCard("m")]), 0.0)
    registry.heard(beat("b", models=[ModelCard("m")], draining=True), 0.0)
    registry.heard(beat("c", models=[ModelCard("other")]), 0.0)
    registry.heard(beat("d", models=[ModelCard("m")], stage="parser"), 0.0)
    assert [b.id for b in registry.able("worker", "m")] == ["a"]
    assert {b.id for b in registry.living("worker")} == {"a", "b", "c"}


def test_own_deafness_kills_nobody() -> None:
    registry = Registry(3.0)
    registry.heard(beat("a"), 0.0)
    registry.forgive(math.inf, 100.0)
    assert registry.sweep(102.0) == []
    assert registry.sweep(103.1) != []


def test_time_without_ears_does_not_count() -> None:
    registry = Registry(3.0)
    registry.heard(beat("a"), 0.0)
    registry.forgive(2.0, 4.0)
    assert registry.sweep(5.0) == []
    assert registry.sweep(5.1) != []
    registry.heard(beat("b"), 6.0)
    registry.forgive(2.0, 7.0)
    assert registry.sweep(10.0) == []
    assert registry.sweep(10.1) != [], "nobody was heard in the future"


def test_who_is_relied_on_and_never_heard_leaves_too() -> None:
    registry = Registry(3.0)
    left: list[tuple[str, str]] = []
    joined: list[str] = []
    registry.on_leave(lambda b: left.append((b.stage, b.id)))
    registry.on_join(lambda b: joined.append(b.id))
    registry.expect("parser", "p", 0.0)
    registry.expect("parser", "p", 2.0)
    assert registry.get("parser", "p") is None
    assert list(registry.living("parser")) == []
    assert [b.id for b in registry.sweep(3.5)] == ["p"]
    assert registry.sweep(9.0) == []
    registry.expect("parser", "q", 9.0)
    assert registry.heard(beat("q", stage="parser"), 10.0)
    registry.expect("parser", "q", 10.5)
    assert registry.sweep(12.5) == []
    registry.expect("worker", "w", 12.0)
    registry.heard(beat("w", leaving=True), 12.5)
    assert left == [("parser", "p"), ("worker", "w")]
    assert joined == ["q"]
