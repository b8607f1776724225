"""One hop of a stream between two processes: numbering, credit and loss, as pure state.

A sender numbers its frames to each receiver 1, 2, 3 … and may have `window` bytes of them under way. The receiver
acknowledges by number: a quarter of a window at a time when busy, and with every beat when idle, so that credit costs a
few messages a second. A number that is skipped is a lost (or late) frame: the receiver asks for a replay of its streams
from where it stands. A frame that is lost at the end shows in the sender's beats, which tell the last number sent; a
request for a replay that is lost shows in them, too, for they tell the last one heeded, and so does lost credit, for
they tell what is owed.

A sender that took a receiver for dead has given its streams to others. Should the receiver be alive after all, the
sender begins a new link, with numbers of the next generation (their upper bits): the receiver then knows that all it
had of this sender is void. If nothing is sent any more, the sender's beats say so by naming no number at all.

Nothing here decides what a frame holds. Lost frames are never sent again as such: streams are, from an offset, in new
frames, and receivers drop what they have.
"""

from collections import deque

GENERATION_BITS = 32
ABSENCES = 2
"""So many beats without a number are no beats that were overtaken by frames."""


def generation(seq: int) -> int:
    """The generation of the link that a frame's number belongs to."""
    return seq >> GENERATION_BITS


class SendLink:
    """The sender's side of one link."""

    __slots__ = ("_claim", "_sizes", "heeded", "seq", "under_way", "window")

    def __init__(self, window: int, generation: int = 0) -> None:
        """`window`: bytes that may be under way before the first credit comes."""
        self.window = max(window, 1)
        self.seq = generation << GENERATION_BITS
        self.under_way = 0
        self.heeded = 0
        """The last request for a replay."""
        self._sizes: deque[tuple[int, int]] = deque()
        self._claim = (0, 0)

    @property
    def open(self) -> bool:
        """Whether another frame may be sent now. The last one may overshoot the window by its own size."""
        return self.under_way < self.window

    def sent(self, size: int) -> None:
        """The frame with the next number went out with `size` bytes."""
        self.seq += 1
        self.under_way += size
        self._sizes.append((self.seq, size))

    def credit(self, seq: int, window: int, asked: int) -> None:
        """The receiver handled all frames up to `seq`, or gave them up after it asked for a replay with this number."""
        self.window = max(window, 1)
        self._claim = (seq, asked)
        sizes = self._sizes
        while sizes and sizes[0][0] <= seq:
            self.under_way -= sizes.popleft()[1]

    def heed(self, number: int) -> bool:
        """The receiver asks for a replay. True where a request before this one is lost."""
        skipped = number != self.heeded + 1
        self.heeded = number
        return skipped

    @property
    def credited(self) -> int:
        """The last number that the receiver acknowledged."""
        return self._claim[0]

    @property
    def owed(self) -> bool:
        """Something was sent that the receiver has not acknowledged."""
        return bool(self._sizes)

    @property
    def delivered(self) -> int:
        """All frames up to this number arrived, or what they held is to be sent again."""
        seq, asked = self._claim
        return seq if asked <= self.heeded else 0

    def __repr__(self) -> str:
        return f"<SendLink seq={self.seq} under_way={self.under_way}/{self.window}>"


class ReceiveLink:
    """The receiver's side of one link."""

    __slots__ = ("_absences", "_announced", "_credited", "_due", "_unacked", "asked", "generation", "last", "window")

    def __init__(self, window: int, generation: int = 0) -> None:
        self.window = window
        self.generation = generation
        self.last = generation << GENERATION_BITS
        """The greatest number that arrived, or was given up."""
        self._credited = self.last
        self._announced = self.last
        self._unacked = 0
        self.asked = 0
        """The last request for a replay."""
        self._absences = 0
        self._due = 0

    def arrived(self, seq: int, size: int) -> bool:
        """Takes note of a frame. True where frames between it and the one before are missing."""
        gap = seq > self.last + 1
        self.last = max(self.last, seq)
        self._unacked += size
        self._absences = 0
        return gap

    def credit_due(self) -> bool:
        """Whether a quarter of the window was handled since the last credit."""
        return self._unacked * 4 >= self.window

    def announced(self, seq: int) -> bool:
        """The sender's beat says that it sent frames up to `seq`. True where the last of them are lost.

        A beat may overtake a frame inside the receiver, so only what was already announced a beat ago and still has
        not come counts as lost; it is then given up, for the replay brings it under new numbers.
        """
        self._absences = 0
        lost = self._announced > self.last
        if lost:
            self.last = self._announced
        self._announced = seq
        return lost

    def ask(self) -> int:
        """A replay is needed: the number of the request."""
        self.asked += 1
        return self.asked

    def heeded(self, number: int) -> bool:
        """The sender's beat says which request for a replay it heeded last. True where a later one is lost: one that
        was on its way a beat ago."""
        lost = number < self._due
        self._due = 0 if lost else self.asked
        return lost

    def unnamed(self) -> bool:
        """The sender's beat names no number of this link. True where that means that it has given the link up."""
        self._absences += 1
        return self._absences >= ABSENCES

    def owed(self, credited: int | None) -> None:
        """The sender's beat says up to which number it has credit, if not for all that it sent. What this side has
        granted beyond that is lost, or on its way: it is granted again, which does no harm."""
        if credited is not None:
            self._credited = min(self._credited, credited)

    def take_credit(self) -> int | None:
        """The number to acknowledge now, or None where all that came is acknowledged."""
        if self.last == self._credited:
            return None
        self._credited = self.last
        self._unacked = 0
        return self.last
