"""Own heartbeats that come back, late, and not at all."""

from services.runtime.config import BusConfig
from services.runtime.liveness import Liveness

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
