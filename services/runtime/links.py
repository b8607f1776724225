"""One hop of a stream between two processes: numbering, credit and loss, as pure state.

A sender numbers its frames to each receiver 1, 2, 3 … and may have `window` bytes of them under way. The receiver
acknowledges by number: a quarter of a window at a time when busy, and with every beat when idle, so that credit costs a
few messages a second. A number that is skipped is a lost (or late) frame: the receiver asks for a replay of its streams
from where it stands. A frame that is lost at the end shows in the sender's beats, which tell the last number sent.

Nothing here decides what a frame holds. Lost frames are never sent again as such: streams are, from an offset, in new
frames, and receivers drop what they have.
"""

from collections import deque


class SendLink:
    """The sender's side of one link."""

    __slots__ = ("_sizes", "seq", "under_way", "window")

    def __init__(self, window: int) -> None:
        """`window`: bytes that may be under way before the first credit comes."""
        self.window = window
        self.seq = 0
        self.under_way = 0
        self._sizes: deque[tuple[int, int]] = deque()

    @property
    def open(self) -> bool:
        """Whether another frame may be sent now. The last one may overshoot the window by its own size."""
        return self.under_way < self.window

    def next_seq(self) -> int:
        """The number of the next frame; `sent` must follow."""
        self.seq += 1
        return self.seq

    def sent(self, size: int) -> None:
        """The frame with the newest number went out with `size` bytes."""
        self.under_way += size
        self._sizes.append((self.seq, size))

    def credit(self, seq: int, window: int) -> None:
        """The receiver handled (or gave up) all frames up to `seq`."""
        self.window = window
        sizes = self._sizes
        while sizes and sizes[0][0] <= seq:
            self.under_way -= sizes.popleft()[1]

    def __repr__(self) -> str:
        return f"<SendLink seq={self.seq} under_way={self.under_way}/{self.window}>"


class ReceiveLink:
    """The receiver's side of one link."""

    __slots__ = ("_announced", "_credited", "_unacked", "last", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.last = 0
        """The greatest number that arrived, or was given up."""
        self._credited = 0
        self._unacked = 0
        self._announced = 0

    def arrived(self, seq: int, size: int) -> bool:
        """Takes note of a frame. True where frames between it and the one before are missing."""
        gap = seq > self.last + 1
        self.last = max(self.last, seq)
        self._unacked += size
        return gap

    def credit_due(self) -> bool:
        """Whether a quarter of the window was handled since the last credit."""
        return self._unacked * 4 >= self.window

    def announced(self, seq: int) -> bool:
        """The sender's beat says that it sent frames up to `seq`. True where the last of them are lost.

        A beat may overtake a frame inside the receiver, so only what was already announced a beat ago and still has
        not come counts as lost; it is then given up, for the replay brings it under new numbers.
        """
        lost = self._announced > self.last
        if lost:
            self.last = self._announced
        self._announced = seq
        return lost

    def take_credit(self) -> int | None:
        """The number to acknowledge now, or None where all that came is acknowledged."""
        if self.last == self._credited:
            return None
        self._credited = self.last
        self._unacked = 0
        return self.last
