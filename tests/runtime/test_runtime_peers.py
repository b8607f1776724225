"""Other processes: heartbeats keep them alive, silence ends them; recent turns and replies."""

import msgspec
import pytest

from schemas.control import Heartbeat, ModelCard
from schemas.errors import TimedOut
from schemas.requests import GenerateReply
from services.runtime.caches import recent_turns
from services.runtime.caches.recent_turns import RecentTurns
from services.runtime.config.service import BusConfig
from services.runtime.nats.requests import decode_reply
from services.runtime.presence.liveness import Liveness
from services.runtime.presence.registry import ProcessRegistry


def heartbeat(process: str, *, stage: str = "worker", **fields: object) -> Heartbeat:
    return Heartbeat(stage=stage, id=process, **fields)  # type: ignore[arg-type]


def test_silence_is_death_and_a_last_heartbeat_is_too() -> None:
    registry = ProcessRegistry(dead_after_s=3.0)
    left: list[str] = []
    registry.on_leave.append(lambda b: left.append(b.id))
    assert registry.receive(heartbeat("a"), 0.0)
    assert not registry.receive(heartbeat("a"), 2.0)
    registry.receive(heartbeat("b"), 2.0)
    assert registry.sweep(5.0) == []
    assert [b.id for b in registry.sweep(5.1)] == ["a", "b"]
    registry.receive(heartbeat("c", models=[ModelCard("m")]), 6.0)
    registry.receive(heartbeat("d", models=[ModelCard("m")], draining=True), 6.0)
    registry.receive(heartbeat("e", models=[ModelCard("other")]), 6.0)
    assert [b.id for b in registry.able("worker", "m")] == ["c"]
    for process in ("c", "d", "e"):
        registry.receive(heartbeat(process, leaving=True), 6.5)
    assert left == [*"abcde"]
    assert list(registry.living("worker")) == []


def test_an_expected_process_without_heartbeats_leaves_too() -> None:
    registry = ProcessRegistry(3.0, recovery_s=10.0)
    left: list[tuple[str, str]] = []
    joined: list[str] = []
    registry.on_leave.append(lambda b: left.append((b.stage, b.id)))
    registry.on_join.append(lambda b: joined.append(b.id))
    registry.expect_heartbeats("parser", "p", 0.0)
    registry.expect_heartbeats("parser", "p", 2.0)
    assert registry.get("parser", "p") is None
    assert list(registry.living("parser")) == []
    assert [b.id for b in registry.sweep(3.5)] == ["p"]
    assert list(registry.former("parser")) == [], "no successor is expected"
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
    registry.on_forget.append(lambda b: forgotten.append(b.id))
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


CONFIG = BusConfig(beat_interval_s=1.0, dead_after_s=4.0)


def begun() -> Liveness:
    liveness = Liveness(CONFIG)
    liveness.begin(100.0)
    return liveness


def test_a_process_is_silent_when_no_heartbeat_comes_back_for_longer_than_the_limit() -> None:
    liveness = begun()
    assert not liveness.silent(103.0)
    assert liveness.silent(103.1)
    liveness.record_sent(1, 101.0)
    assert liveness.receive(1, 101.5) == (101.0, 1.5, False)
    assert not liveness.silent(104.0), "the limit counts from when the heartbeat was sent"
    assert liveness.silent(104.1)


def test_after_a_gap_only_a_heartbeat_that_was_sent_after_it_ends_the_silence() -> None:
    liveness = begun()
    liveness.record_sent(1, 101.0)
    assert liveness.receive(1, 110.0) == (101.0, 10.0, True)
    assert liveness.silent(110.0)
    liveness.record_sent(2, 110.0)
    assert liveness.receive(2, 110.1) == (110.0, 110.1 - 110.0, False)
    assert not liveness.silent(110.1)


def test_a_heartbeat_of_an_earlier_connection_proves_nothing() -> None:
    liveness = begun()
    liveness.record_sent(1, 101.0)
    liveness.forget_sent()
    assert liveness.receive(1, 102.0) is None
    assert liveness.silent(103.1)
    liveness.record_sent(2, 103.0)
    liveness.record_sent(3, 103.5)
    assert liveness.receive(3, 104.0) == (103.5, 4.0, True), (
        "the newest of those that are back counts"
    )
    assert liveness.receive(2, 104.0) is None


def test_newest_attempt_stays_and_the_oldest_turns_go_first() -> None:
    turns = RecentTurns()
    assert turns.attempt("a") == 0
    turns.note("a", 2)
    turns.note("a", 1)
    assert turns.attempt("a") == 2
    for number in range(recent_turns.MAX_TURNS):
        turns.note(str(number), 1)
    assert "a" not in turns
    assert "0" in turns


def test_unreadable_reply_is_a_lost_one() -> None:
    for reply in (b"", b"\xff", b'{"error": 7}', b"[" * 100_000):
        with pytest.raises(TimedOut):
            decode_reply(msgspec.json.Decoder(GenerateReply), reply)
