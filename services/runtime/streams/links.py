"""Tracks one hop of a stream between two processes: numbering, credit and loss. Pure.

A sender numbers its frames to each receiver 1, 2, 3 … and may have `window` bytes of them under
way. The receiver acknowledges by number: when a quarter of a window was handled, and with every
heartbeat, so that credit costs a few messages a second. A skipped number is a lost (or late) frame:
the receiver requests a replay of its streams from their positions. The sender's heartbeats show
what else was lost: they hold the last number sent (lost frames at the end), the last replay request
handled (a lost request) and the last number acknowledged (lost credit).

A sender that took a receiver for dead has moved its streams to others. If the receiver is alive,
the sender begins a new link, with numbers of the next generation (their upper bits); the receiver
then discards what it had of this sender. If nothing more is sent, the sender's heartbeats show
this, because they have no number for the receiver.

Lost frames are not repeated: their streams are sent again from a position, in new frames, and
receivers drop what they already have.
"""

from collections import deque

GENERATION_BITS = 32
ABSENCES = 2
"""Consecutive heartbeats without a number that end a link; a frame may overtake one."""


def generation(seq: int) -> int:
    """Returns the generation of the link that a frame's number belongs to."""
    return seq >> GENERATION_BITS


class SendLink:
    """The sender's side of one link."""

    def __init__(self, window: int, generation: int = 0, subject: str = "") -> None:
        """
        Args:
            window: bytes that may be under way before the first credit.
            subject: the receiver's.
        """
        self.subject = subject
        self.window = max(window, 1)
        self.seq = generation << GENERATION_BITS
        self.under_way = 0
        self.last_replay = 0
        """The number of the last replay request that was handled."""
        self._sizes: deque[tuple[int, int]] = deque()
        self._credit = (0, 0)

    @property
    def open(self) -> bool:
        """Whether another frame may be sent now. The last frame may exceed the window by its own
        size."""
        return self.under_way < self.window

    def record_sent(self, size: int) -> None:
        """Records that the frame with the next number was sent."""
        self.seq += 1
        self.under_way += size
        self._sizes.append((self.seq, size))

    def credit(self, seq: int, window: int, replays_requested: int) -> None:
        """Records that the receiver handled all frames up to `seq`, or requested a replay of what
        they held."""
        self.window = max(window, 1)
        self._credit = (seq, replays_requested)
        sizes = self._sizes
        while sizes and sizes[0][0] <= seq:
            self.under_way -= sizes.popleft()[1]

    def replay(self, number: int) -> bool:
        """Records a replay request. Returns whether one before it was lost."""
        skipped = number != self.last_replay + 1
        self.last_replay = number
        return skipped

    @property
    def acknowledged(self) -> int:
        """The last number that the receiver acknowledged."""
        return self._credit[0]

    @property
    def unacknowledged(self) -> bool:
        """Whether the receiver has yet to acknowledge something."""
        return bool(self._sizes)

    @property
    def delivered(self) -> int:
        """The last number up to which all frames were handled, or their content is sent again."""
        seq, replays_requested = self._credit
        return seq if replays_requested <= self.last_replay else 0


class ReceiveLink:
    """The receiver's side of one link."""

    def __init__(self, window: int, generation: int = 0) -> None:
        self.window = window
        self.generation = generation
        self.last = generation << GENERATION_BITS
        """The highest number that arrived or was given up."""
        self.credit_due = False
        """A quarter of the window was handled since the last credit."""
        self.replays_requested = 0
        """The number of the last replay request."""
        self._acknowledged = self.last
        self._announced = self.last
        self._unacknowledged_bytes = 0
        self._absences = 0
        self._replay_due = 0

    def arrived(self, seq: int, size: int) -> bool:
        """Records a frame. Returns whether frames before it are missing."""
        expected = self.last + 1
        if seq >= expected:
            self.last = seq
        self._unacknowledged_bytes += size
        self.credit_due = self._unacknowledged_bytes * 4 >= self.window
        self._absences = 0
        return seq > expected

    def announced(self, seq: int) -> bool:
        """Records the last number sent, from a heartbeat. Returns whether the last frames are lost.

        A heartbeat may overtake a frame inside the receiver, so a frame counts as lost if the
        previous heartbeat announced it already. It is then given up: the replay brings its contents
        under new numbers.
        """
        self._absences = 0
        lost = self._announced > self.last
        if lost:
            self.last = self._announced
        self._announced = seq
        return lost

    def absent(self) -> bool:
        """Records a heartbeat without a number for this link. Returns whether the sender has
        dropped the link."""
        self._absences += 1
        return self._absences >= ABSENCES

    def request_replay(self) -> int:
        """Returns the number of a new replay request."""
        self.replays_requested += 1
        return self.replays_requested

    def replay_handled(self, number: int) -> bool:
        """Records the last replay request handled, from a heartbeat. Returns whether a later one is
        lost: one that was sent before the previous heartbeat."""
        lost = number < self._replay_due
        self._replay_due = 0 if lost else self.replays_requested
        return lost

    def acknowledged(self, seq: int | None) -> None:
        """Records the last acknowledged number, from a heartbeat; None: all. Credit beyond it is
        lost or under way, and is granted again, which is harmless."""
        if seq is not None:
            self._acknowledged = min(self._acknowledged, seq)

    def take_credit(self) -> int | None:
        """Returns the number to acknowledge now; None where all is acknowledged."""
        if self.last == self._acknowledged:
            return None
        self._acknowledged = self.last
        self._unacknowledged_bytes = 0
        self.credit_due = False
        return self.last
