"""Heartbeats keep processes alive; silence and last heartbeats end them."""

from schemas.control import Heartbeat, ModelCard
from services.runtime.registry import ProcessRegistry


def heartbeat(process: str, *, stage: str = "worker", **fields: object) -> Heartbeat:
    return Heartbeat(stage=stage, id=process, **fields)  # type: ignore[arg-type]


def test_silence_is_death_and_a_last_heartbeat_is_too() -> None:
    registry = ProcessRegistry(dead_after_s=3.0)
    left: list[str] = []
    registry.on_leave(lambda b: left.append(b.id))
    assert registry.receive(heartbeat("a"), 0.0)
    assert not registry.receive(heartbeat("a"), 2.0)
    registry.receive(heartbeat("b"), 2.0)
    assert registry.sweep(5.0) == []
    assert [b.id for b in registry.sweep(5.1)] == ["a", "b"]
    registry.receive(heartbeat("c"), 6.0)
    registry.receive(heartbeat("c", leaving=True), 6.5)
    assert left == ["a", "b", "c"]
    assert list(registry.living("worker")) == []


def test_only_processes_that_accept_work_for_the_model_are_able() -> None:
    registry = ProcessRegistry(3.0)
    registry.receive(heartbeat("a", models=[ModelCard("m")]), 0.0)
    registry.receive(heartbeat("b", models=[ModelCard("m")], draining=True), 0.0)
    registry.receive(heartbeat("c", models=[ModelCard("other")]), 0.0)
    registry.receive(heartbeat("d", models=[ModelCard("m")], stage="parser"), 0.0)
    assert [b.id for b in registry.able("worker", "m")] == ["a"]
    assert {b.id for b in registry.living("worker")} == {"a", "b", "c"}


def test_part_of_the_time_without_reception_is_discounted() -> None:
    registry = ProcessRegistry(3.0)
    registry.receive(heartbeat("a"), 0.0)
    registry.discount(2.0, 4.0)
    assert registry.sweep(5.0) == []
    assert registry.sweep(5.1) != []
    registry.receive(heartbeat("b"), 6.0)
    registry.discount(2.0, 7.0)
    assert registry.sweep(10.0) == []
    assert registry.sweep(10.1) != [], "no heartbeat lies in the future"


def test_an_expected_process_without_heartbeats_leaves_too() -> None:
    registry = ProcessRegistry(3.0)
    left: list[tuple[str, str]] = []
    joined: list[str] = []
    registry.on_leave(lambda b: left.append((b.stage, b.id)))
    registry.on_join(lambda b: joined.append(b.id))
    registry.expect_heartbeats("parser", "p", 0.0)
    registry.expect_heartbeats("parser", "p", 2.0)
    assert registry.get("parser", "p") is None
    assert list(registry.living("parser")) == []
    assert [b.id for b in registry.sweep(3.5)] == ["p"]
    assert registry.sweep(9.0) == []
    registry.expect_heartbeats("parser", "q", 9.0)
    assert registry.receive(heartbeat("q", stage="parser"), 10.0)
    registry.expect_heartbeats("parser", "q", 10.5)
    assert registry.sweep(12.5) == []
    registry.expect_heartbeats("worker", "w", 12.0)
    registry.receive(heartbeat("w", leaving=True), 12.5)
    assert left == [("parser", "p"), ("worker", "w")]
    assert joined == ["q"]


def test_a_successor_is_expected_for_a_while() -> None:
    registry = ProcessRegistry(3.0, recovery_s=10.0)
    forgotten: list[str] = []
    registry.on_forget(lambda b: forgotten.append(b.id))
    registry.receive(heartbeat("a", models=[ModelCard("m")]), 0.0)
    registry.receive(heartbeat("b", models=[ModelCard("m")]), 4.0)
    registry.sweep(4.0)
    registry.receive(heartbeat("b", leaving=True), 5.0)
    assert [b.id for b in registry.former("worker")] == ["a", "b"]
    assert registry.awaited("worker", "m")
    assert not registry.awaited("worker", "other")
    assert not registry.awaited("parser", "m")
    registry.receive(heartbeat("a", models=[ModelCard("m")]), 6.0)
    assert [b.id for b in registry.former("worker")] == ["b"], "a is back"
    registry.receive(heartbeat("a", leaving=True), 6.0)
    registry.sweep(15.0)
    assert forgotten == ["b"]
    assert registry.awaited("worker", "m")
    registry.sweep(16.0)
    assert forgotten == ["b", "a"]
    assert not registry.awaited("worker", "m")


def test_no_successor_is_expected_of_a_process_that_was_never_there() -> None:
    registry = ProcessRegistry(3.0, recovery_s=10.0)
    registry.expect_heartbeats("worker", "w", 0.0)
    assert len(registry.sweep(4.0)) == 1
    assert list(registry.former("worker")) == []


def test_listener_that_raises_keeps_no_other_from_its_event() -> None:
    failed: list[str] = []
    told: list[str] = []
    registry = ProcessRegistry(3.0, 10.0, on_error=lambda error: failed.append(str(error)))

    def fail(peer: Heartbeat) -> None:
        raise ValueError(peer.id)

    for register in (registry.on_join, registry.on_heartbeat, registry.on_leave):
        register(fail)
        register(lambda peer: told.append(peer.id))
    registry.on_forget(fail)
    for process in ("a", "b"):
        assert registry.receive(heartbeat(process), 0.0)
    assert told == failed == ["a", "a", "b", "b"]

    assert [peer.id for peer in registry.sweep(4.0)] == ["a", "b"]
    assert told[4:] == failed[4:] == ["a", "b"]
    registry.sweep(20.0)
    assert failed[6:] == ["a", "b"]
    assert list(registry.former("worker")) == []
