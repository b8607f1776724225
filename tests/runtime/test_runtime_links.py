"""One hop's numbering, credit and loss."""

from hypothesis import given
from hypothesis import strategies as st

from services.runtime.links import ReceiveLink, SendLink


def test_a_sender_stops_at_its_window_and_goes_on_with_credit() -> None:
    link = SendLink(100)
    for size in (60, 60):
        assert link.open
        link.sent(size)
    assert not link.open
    link.credit(1, 100)
    assert link.open
    assert link.under_way == 60


def test_credit_can_change_the_window() -> None:
    link = SendLink(100)
    link.sent(80)
    link.credit(0, 50)
    assert not link.open
    link.credit(0, 200)
    assert link.open


def test_a_skipped_number_is_a_gap_and_a_late_one_is_not() -> None:
    link = ReceiveLink(1000)
    assert not link.arrived(1, 10)
    assert link.arrived(3, 10)
    assert not link.arrived(2, 10)
    assert not link.arrived(4, 10)
    assert link.last == 4


def test_credit_is_due_after_a_quarter_of_the_window() -> None:
    link = ReceiveLink(1000)
    link.arrived(1, 249)
    assert not link.credit_due()
    link.arrived(2, 1)
    assert link.credit_due()
    assert link.take_credit() == 2
    assert link.take_credit() is None
    assert not link.credit_due()


def test_a_lost_end_shows_in_the_second_beat() -> None:
    link = ReceiveLink(1000)
    link.arrived(1, 10)
    assert not link.announced(3), "frames 2 and 3 may still be behind the beat"
    assert link.announced(3)
    assert link.last == 3, "given up: the replay comes under new numbers"
    assert not link.announced(3)


def test_a_beat_that_overtakes_its_frames_is_no_loss() -> None:
    link = ReceiveLink(1000)
    assert not link.announced(2)
    link.arrived(1, 10)
    link.arrived(2, 10)
    assert not link.announced(2)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=200),
    st.data(),
)
def test_whatever_is_lost_the_link_opens_again(sizes: list[int], data: st.DataObject) -> None:
    """However many frames and credits get lost, beats bring the sender back to an open link with nothing under way."""
    window = 1000
    sender, receiver = SendLink(window), ReceiveLink(window)
    for size in sizes:
        if not sender.open:
            # one beat interval: the receiver learns what it missed and says what it has
            receiver.announced(sender.seq)
            receiver.announced(sender.seq)
            seq = receiver.take_credit()
            if seq is not None:
                sender.credit(seq, window)
        assert sender.open
        sender.sent(size)
        seq = sender.seq
        if data.draw(st.booleans()):
            receiver.arrived(seq, size)
            if receiver.credit_due() and data.draw(st.booleans()):
                granted = receiver.take_credit()
                assert granted is not None
                sender.credit(granted, window)
        assert 0 <= sender.under_way < window + 400
