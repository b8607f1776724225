"""One hop's numbering, credit and loss."""

from hypothesis import given
from hypothesis import strategies as st

from services.runtime.streams.links import ReceiveLink, SendLink, generation


def test_a_lost_end_shows_in_the_second_beat() -> None:
    link = ReceiveLink(1000)
    link.arrived(1, 10)
    assert not link.announced(3), "frames 2 and 3 may still be behind the beat"
    assert link.announced(3)
    assert link.last == 3, "given up: the replay comes under new numbers"
    assert not link.announced(3)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=200), st.data())
def test_whatever_is_lost_the_link_opens_again(sizes: list[int], data: st.DataObject) -> None:
    """However many frames and credits get lost, beats bring the sender back to an open link with
    nothing under way."""
    window = 1000
    sender, receiver = SendLink(window), ReceiveLink(window)
    for size in sizes:
        if not sender.open:
            # one beat interval: the receiver learns what it missed and says what it has
            receiver.announced(sender.seq)
            receiver.announced(sender.seq)
            while not sender.open:
                receiver.acknowledged(sender.acknowledged if sender.unacknowledged else None)
                seq = receiver.take_credit()
                assert seq is not None
                if data.draw(st.booleans()):  # else the credit is lost, and the next beat says so
                    sender.credit(seq, window, 0)
        sender.record_sent(size)
        seq = sender.seq
        if data.draw(st.booleans()):
            receiver.arrived(seq, size)
            if receiver.credit_due and data.draw(st.booleans()):
                granted = receiver.take_credit()
                assert granted is not None
                sender.credit(granted, window, 0)
        assert 0 <= sender.under_way < window + 400


def test_a_frame_that_was_given_up_is_not_delivered_before_its_replay() -> None:
    """The request for a replay gets lost, the credit that gives the frames up does not."""
    sender, receiver = SendLink(1000), ReceiveLink(1000)
    for _ in range(3):
        sender.record_sent(10)
    receiver.arrived(1, 10)
    assert receiver.arrived(3, 10), "the second is missing"
    first = receiver.request_replay()
    sender.credit(3, 1000, receiver.replays_requested)
    assert sender.under_way == 0, "there is room for the replay …"
    assert sender.delivered == 0, "… but nothing is let go"
    assert not receiver.replay_handled(sender.last_replay), "it may still be on its way"
    assert receiver.replay_handled(sender.last_replay), "a beat later it is lost"
    second = receiver.request_replay()
    assert sender.replay(second), "one before it was lost: everything is sent again"
    assert sender.delivered == 3
    assert not receiver.replay_handled(sender.last_replay)
    assert not receiver.replay_handled(sender.last_replay)
    assert (first, second) == (1, 2)


def test_a_new_generation_has_numbers_of_its_own() -> None:
    old, new = SendLink(1000), SendLink(1000, generation=3)
    for link in (old, new):
        link.record_sent(10)
    assert (generation(old.seq), generation(new.seq)) == (0, 3)
    receiver = ReceiveLink(1000, generation(new.seq))
    assert not receiver.arrived(new.seq, 10), "the first of its generation follows nothing"
    new.credit(old.seq, 1000, 0)
    assert new.under_way == 10, "credit for the old numbers is none for the new"
    assert receiver.take_credit() == new.seq
