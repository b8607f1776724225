"""A turn's events as a log that can be read again from any point, and the cursor that drops what was read.

The sender keeps a `TurnLog`: text is joined per block, so a log costs what the turn's text costs, and a reader that was
held up gets one long delta instead of many short ones. Sender and receiver both keep a `Cursor`: the sender's says what
was sent, the receiver's what has come. Replays, repeats and a second parse of the same tokens by another process all
look alike to a cursor: what it has passed is dropped, what comes next is taken, and a hole is reported.
"""

import sys
from bisect import bisect_left
from enum import Enum

from schemas.control import Standing
from schemas.events import BlockKind, BlockStart, BlockStop, Delta, Failed, Finish, Interrupted, TokenLogprob

LoggedEvent = BlockStart | Delta | BlockStop | Finish | Failed | Interrupted

TOLD_BYTES = 100
"""A token or alternative with its log probability, in JSON."""


class Verdict(Enum):
    """What a cursor says of an event that is not simply next."""

    REPEAT = "repeat"
    GAP = "gap"


class Cursor:
    """A position in a turn: `blocks` were started, the last of them has `length` characters and may be `stopped`."""

    __slots__ = ("blocks", "ended", "length", "stopped")

    def __init__(self) -> None:
        self.blocks = 0
        self.length = 0
        self.stopped = True
        self.ended = False

    def accept(self, event: LoggedEvent) -> LoggedEvent | Verdict:
        """The part of `event` that is new (and moves the cursor behind it), or why there is none."""
        if self.ended:
            return Verdict.REPEAT
        if isinstance(event, Delta):
            if event.offset == self.length and event.block == self.blocks - 1 and not self.stopped:
                self.length += len(event.text)
                return event
            return self._accept_delta(event)
        if isinstance(event, BlockStart):
            return self._accept_start(event)
        if isinstance(event, BlockStop):
            return self._accept_stop(event)
        if isinstance(event, Finish) and (event.blocks > self.blocks or not self.stopped):
            return Verdict.GAP
        # An interruption ends this log and not the turn: the next attempt goes on at this cursor.
        self.ended = not isinstance(event, Interrupted)
        return event

    def _accept_delta(self, event: Delta) -> Delta | Verdict:
        current = self.blocks - 1
        if event.block > current:
            return Verdict.GAP
        if event.block < current or self.stopped:
            return Verdict.REPEAT
        have = self.length - event.offset
        if have < 0:
            return Verdict.GAP
        if have >= len(event.text):
            return Verdict.REPEAT
        told = event.logprobs
        if told is not None:
            told = [token for token in told if token.at >= self.length]
        fresh = Delta(event.block, self.length, event.text[have:], told)
        self.length += len(fresh.text)
        return fresh

    def _accept_start(self, event: BlockStart) -> BlockStart | Verdict:
        if event.block < self.blocks:
            return Verdict.REPEAT
        if event.block > self.blocks or not self.stopped:
            return Verdict.GAP
        self.blocks += 1
        self.length = 0
        self.stopped = False
        return event

    def _accept_stop(self, event: BlockStop) -> BlockStop | Verdict:
        current = self.blocks - 1
        if event.block < current or (event.block == current and self.stopped):
            return Verdict.REPEAT
        if event.block > current or self.length < event.length:
            return Verdict.GAP
        self.stopped = True
        return event

    @property
    def place(self) -> tuple[int, int]:
        """The block that is open or comes next, and the characters of it that were passed. Places can be compared."""
        return (self.blocks, 0) if self.stopped else (self.blocks - 1, self.length)

    def standing(self, turn: str, attempt: int) -> Standing:
        """Where to replay from."""
        block, length = self.place
        return Standing(turn, attempt, length, block)

    def rewind(self, standing: Standing) -> None:
        """Moves back (never forward) to a receiver's standing, so that the log is read again from there."""
        place = (max(standing.block, 0), max(standing.offset, 0))
        if place <= self.place:
            block, self.length = place
            # A receiver that has nothing of a block may not know that it began.
            self.stopped = self.length == 0
            self.blocks = block if self.stopped else block + 1
        self.ended = False


class _Block:
    __slots__ = ("length", "pieces", "start", "stop", "told")

    def __init__(self, start: BlockStart) -> None:
        self.start = start
        self.pieces: list[str] = []
        self.length = 0
        self.stop: BlockStop | None = None
        self.told: list[TokenLogprob] = []
        """In order of place. Some may stand behind the text that is out."""

    def text_from(self, offset: int, room: int) -> str:
        """At most `room` characters of what stands behind `offset`, which must not be the end."""
        pieces = self.pieces
        if not offset:
            pieces[:] = ["".join(pieces)]
        first = len(pieces) - 1
        at = self.length - len(pieces[first])
        while at > offset:  # as a rule it is the last piece
            first -= 1
            at -= len(pieces[first])
        if first < len(pieces) - 1:
            # Joined for good, so that whoever reads a long text in many steps does not walk along it each time.
            pieces[first:] = ["".join(pieces[first:])]
        start = offset - at
        return pieces[first][start : start + room]

    def told_from(self, offset: int, text: str, room: int) -> tuple[str, list[TokenLogprob], int]:
        """The tokens of `text`, which stands at `offset`. Where they do not fit the room it is cut before one of them.

        Returns the text, its tokens, and the bytes that these take, about.
        """
        first = bisect_left(self.told, offset, key=_place)
        end = bisect_left(self.told, offset + len(text), lo=first, key=_place)
        size = 0
        for index in range(first, end):
            token = self.told[index]
            if size > room and token.at > max(offset, self.told[index - 1].at):
                return text[: token.at - offset], self.told[first:index], size
            size += TOLD_BYTES * (1 + len(token.top))
        return text, self.told[first:end], size


class TurnLog:
    """All events of a turn so far."""

    __slots__ = ("_blocks", "size", "terminal")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self.size = 0
        """Events that were appended."""
        self.terminal: Finish | Failed | Interrupted | None = None

    def add(self, text: str) -> None:
        """Adds text to the open block: as `append` does with a `Delta`."""
        self.size += 1
        block = self._blocks[-1]
        block.pieces.append(text)
        block.length += len(text)

    def tell(self, tokens: list[TokenLogprob]) -> None:
        """Adds log probabilities of the last block's tokens, in order. They go out with the text at their places."""
        self._blocks[-1].told += tokens

    def append(self, event: LoggedEvent) -> None:
        """Adds the next event. The writer is trusted to write in order."""
        if isinstance(event, Delta):
            self.add(event.text)
            return
        self.size += 1
        if isinstance(event, BlockStart):
            self._blocks.append(_Block(event))
        elif isinstance(event, BlockStop):
            self._blocks[-1].stop = event
        else:
            self.terminal = event

    def read(self, cursor: Cursor, room: int = sys.maxsize) -> tuple[list[LoggedEvent], int]:
        """What is behind the cursor, deltas joined, up to about `room` characters; moves the cursor past it.

        Returns the events and the room that is left; where that is none, there may be more to read.
        """
        out: list[LoggedEvent] = []
        first = cursor.blocks - (not cursor.stopped)
        for index in range(first, len(self._blocks)):
            if room <= 0:
                return out, 0
            block = self._blocks[index]
            if index >= cursor.blocks:
                out.append(block.start)
                cursor.blocks, cursor.length, cursor.stopped = index + 1, 0, False
            if cursor.length < block.length:
                text = block.text_from(cursor.length, room)
                told = None
                if block.told:
                    text, told, size = block.told_from(cursor.length, text, room)
                    room -= size
                out.append(Delta(index, cursor.length, text, told))
                cursor.length += len(text)
                room -= len(text)
                if cursor.length < block.length:
                    return out, 0
            if block.stop is not None:
                out.append(block.stop)
                cursor.stopped = True
                room -= len(block.stop.seal or "")
        if self.terminal is not None and not cursor.ended:
            if room <= 0:
                return out, 0
            out.append(self.terminal)
            cursor.ended = True
            if isinstance(self.terminal, Interrupted):
                room -= len(self.terminal.token_ids) * 4 // 3  # in base64
        return out, max(room, 0)

    @property
    def end(self) -> tuple[int, int]:
        """The place (see `Cursor.place`) behind the last event."""
        if self.open_kind is None:
            return len(self._blocks), 0
        return len(self._blocks) - 1, self._blocks[-1].length

    @property
    def blocks(self) -> int:
        """How many blocks were started."""
        return len(self._blocks)

    @property
    def open_kind(self) -> BlockKind | None:
        """The kind of the block that is open."""
        if not self._blocks or self._blocks[-1].stop is not None:
            return None
        return self._blocks[-1].start.kind

    def text(self, block: int) -> str:
        """All text of a block so far."""
        return "".join(self._blocks[block].pieces)

    def ends(self, block: int) -> tuple[BlockStart, BlockStop | None]:
        """How a block began, and how it ended if it did."""
        return self._blocks[block].start, self._blocks[block].stop


def _place(token: TokenLogprob) -> int:
    return token.at
