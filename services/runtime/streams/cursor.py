"""The position of a sender or receiver in a turn's events, which drops events that were passed.

Sender and receiver each keep a `Cursor`: up to where events were sent, and up to where they
arrived. A cursor handles replays, repeats and another process's parse of the same tokens alike: it
drops what it has passed, takes what comes next, and reports a gap. Pure.
"""

from enum import Enum

from schemas.control import StreamPosition
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    Interrupted,
    LoggedEvent,
    OutputTokens,
    WeightsSpan,
    spans_between,
)


class Verdict(Enum):
    """Why a cursor does not take an event."""

    REPEAT = "repeat"
    GAP = "gap"


class Cursor:
    """A position in a turn: `blocks` were started, the last one has `length` characters and may be
    `stopped`; `tokens` ids were passed, if the turn has ids."""

    __slots__ = ("_weights", "blocks", "ended", "length", "stopped", "tokens")

    def __init__(self) -> None:
        self.blocks = 0
        self.length = 0
        self.tokens = 0
        self._weights = 0
        """The version of the weights that decoded the last id that was accepted."""
        self.stopped = True
        self.ended = False

    def accept(self, event: LoggedEvent) -> LoggedEvent | Verdict:
        """Returns the new part of `event` and moves the cursor past it, or returns why there is
        none."""
        if self.ended:
            return Verdict.REPEAT
        if isinstance(event, Delta):
            if event.offset == self.length and event.block == self.blocks - 1 and not self.stopped:
                self.length += len(event.text)
                return event
            return self._accept_delta(event)
        if isinstance(event, BlockStart):
            return self._accept_start(event)
        if isinstance(event, Dispatch | BlockStop):
            return self._accept_end(event)
        if isinstance(event, OutputTokens):
            return self._accept_tokens(event)
        if isinstance(event, Finish) and (
            event.blocks > self.blocks or not self.stopped or event.tokens > self.tokens
        ):
            return Verdict.GAP
        # An interruption ends this log and not the turn: the next attempt continues at this cursor.
        self.ended = not isinstance(event, Interrupted)
        return event

    def _accept_tokens(self, event: OutputTokens) -> OutputTokens | Verdict:
        have = self.tokens - event.at
        if have < 0:
            return Verdict.GAP
        if have >= len(event.ids):
            return Verdict.REPEAT
        fresh = OutputTokens(
            self.tokens,
            event.ids[have:],
            event.logprobs and event.logprobs[have:],
            self._accept_weights(event),
        )
        self.tokens += len(fresh.ids)
        return fresh

    def _accept_weights(self, event: OutputTokens) -> list[WeightsSpan]:
        """Returns the versions that begin among an event's new ids."""
        new: list[WeightsSpan] = []
        for span in spans_between(event.weights, self.tokens, event.at + len(event.ids)):
            if span.version != self._weights:
                new.append(span)
                self._weights = span.version
        return new

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
        logprobs = event.logprobs
        if logprobs is not None:
            logprobs = [token for token in logprobs if token.at >= self.length]
        fresh = Delta(event.block, self.length, event.text[have:], logprobs)
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

    def _accept_end(self, event: Dispatch | BlockStop) -> Dispatch | BlockStop | Verdict:
        """Accepts a call's `Dispatch`, or the end of a block. They come in one batch, so that none
        is lost alone."""
        current = self.blocks - 1
        if event.block < current or (event.block == current and self.stopped):
            return Verdict.REPEAT
        length = event.length if isinstance(event, BlockStop) else len(event.arguments)
        if event.block > current or self.length < length:
            return Verdict.GAP
        self.stopped = isinstance(event, BlockStop)
        return event

    @property
    def text_position(self) -> tuple[int, int]:
        """The number of the open or next block, and how many of its characters were passed. They
        can be compared."""
        return (self.blocks, 0) if self.stopped else (self.blocks - 1, self.length)

    def position(self, turn: str, attempt: int) -> StreamPosition:
        """Returns the position for a replay."""
        block, length = self.text_position
        return StreamPosition(turn, attempt, length, block, self.tokens)

    def rewind(self, position: StreamPosition) -> None:
        """Moves back (never forward) to a receiver's position, so that the log is read again from
        there."""
        received = (max(position.block, 0), max(position.offset, 0))
        if received <= self.text_position:
            block, self.length = received
            # A receiver without text of a block may lack its start.
            self.stopped = self.length == 0
            self.blocks = block if self.stopped else block + 1
        self.tokens = min(self.tokens, max(position.tokens, 0))
        self.ended = False
