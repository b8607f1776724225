"""A log of a turn's events that can be read again from any point.

Text is joined per block, so a log takes the memory of the turn's text, and a delayed reader gets
one long delta instead of many short ones. Pure.
"""

import sys
from bisect import bisect_left
from collections.abc import Sequence

from schemas.control import StreamPosition
from schemas.events import (
    MAX_DISPATCH,
    BlockKind,
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Failed,
    Finish,
    Interrupted,
    LoggedEvent,
    OutputTokens,
    TokenLogprob,
)
from services.runtime.streams.cursor import Cursor
from services.runtime.streams.token_log import LOGPROB_BYTES, TokenLog


class LogBlock:
    """One block: its text in pieces, and its end if it has one."""

    __slots__ = ("length", "logprobs", "pieces", "start", "stop")

    def __init__(self, start: BlockStart) -> None:
        self.start = start
        self.pieces: list[str] = []
        self.length = 0
        self.stop: BlockStop | None = None
        self.logprobs: list[TokenLogprob] = []
        """Sorted by place. Some places may be after the text so far."""

    def text(self) -> str:
        """Returns all text, and keeps it joined."""
        self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0]

    @property
    def is_whole(self) -> bool:
        """Whether the block has ended and is complete."""
        return self.stop is not None and self.stop.complete

    def dispatch(self) -> Dispatch | None:
        """Returns the `Dispatch` of a complete call; None for any other block, and for a call that
        is too long."""
        start = self.start
        if start.kind != "tool_use" or not self.is_whole or self.length > MAX_DISPATCH:
            return None
        return Dispatch(start.block, start.call_id or "", start.name or "", self.text())

    def text_from(self, offset: int, room: int) -> str:
        """Returns at most `room` characters from `offset` on, which must be before the end."""
        pieces = self.pieces
        if not offset:
            self.text()
        first = len(pieces) - 1
        at = self.length - len(pieces[first])
        while at > offset:  # usually the last piece
            first -= 1
            at -= len(pieces[first])
        if first < len(pieces) - 1:
            # Kept joined, so that reading a long text in many steps takes linear time.
            pieces[first:] = ["".join(pieces[first:])]
        start = offset - at
        return pieces[first][start : start + room]

    def read(self, offset: int, end: int, room: int) -> tuple[str, list[TokenLogprob] | None, int]:
        """Returns the text from `offset` to `end`, or as much as there is room for; its tokens with
        log probabilities, if there are any; and the size of these, about, in bytes."""
        text = self.text_from(offset, min(room, end - offset))
        if not self.logprobs:
            return text, None, 0
        return self._logprobs_of(offset, text, room)

    def _logprobs_of(
        self, offset: int, text: str, room: int
    ) -> tuple[str, list[TokenLogprob], int]:
        """Finds the tokens of `text`, which begins at `offset`, and cuts the text before a token
        that exceeds the room.

        Returns the text, its tokens, and their approximate size in bytes.
        """
        tokens = self.logprobs
        first = bisect_left(tokens, offset, key=_place)
        end = bisect_left(tokens, offset + len(text), lo=first, key=_place)
        size = 0
        for index in range(first, end):
            token = tokens[index]
            if size > room and token.at > max(offset, tokens[index - 1].at):
                return text[: token.at - offset], tokens[first:index], size
            size += LOGPROB_BYTES * (1 + len(token.top))
        return text, tokens[first:end], size

    def cut(self, length: int) -> None:
        """Opens the block again, with the first `length` characters of its text."""
        self.pieces[:] = [self.text()[:length]]
        self.length = length
        self.stop = None
        del self.logprobs[bisect_left(self.logprobs, length, key=_place) :]


class TurnLog:
    """All events of a turn so far. Those of a call may be withheld until it is whole."""

    __slots__ = ("blocks", "size", "terminal", "tokens", "withheld_after")

    def __init__(self) -> None:
        self.blocks: list[LogBlock] = []
        self.tokens = TokenLog()
        """Empty but for a request with `return_token_ids`."""
        self.size = 0
        """The number of events that were added."""
        self.terminal: Finish | Failed | Interrupted | None = None
        self.withheld_after: tuple[int, int] | None = None
        """The place after which events are withheld; None: all can be read."""

    def withhold(self, place: tuple[int, int]) -> None:
        """Withholds the events after a place (`Cursor.text_position`)."""
        self.withheld_after = place

    def release(self) -> None:
        """Lets all events be read."""
        self.withheld_after = None
        self.tokens.readable = None

    def drop_withheld(self, ids: int) -> list[LoggedEvent]:
        """Removes the events that are withheld, and all output tokens but the first `ids`. Returns
        them, with the last event; or nothing, if they are too long for a frame."""
        block, length = self.withheld_after or self.end
        self.release()
        cursor = Cursor()
        self.read(cursor)
        cursor.rewind(StreamPosition("", 0, length, block, ids))
        dropped, room = self.read(cursor, MAX_DISPATCH)
        if length:
            self.blocks[block].cut(length)
            block += 1
        del self.blocks[block:]
        self.tokens.cut(ids)
        return dropped if room else []

    def add(self, text: str) -> None:
        """Adds text to the open block, as `append` does with a `Delta`."""
        self.size += 1
        block = self.blocks[-1]
        block.pieces.append(text)
        block.length += len(text)

    def add_logprobs(self, tokens: list[TokenLogprob]) -> None:
        """Adds log probabilities of the last block's tokens, in order. They are read with the text
        at their places."""
        self.blocks[-1].logprobs += tokens

    def add_tokens(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None] | None
    ) -> None:
        """Adds output tokens, as `TokenLog.add`."""
        self.size += 1
        self.tokens.add(ids, logprobs)

    def append(self, event: LoggedEvent) -> None:
        """Adds the next event. Ignores a `Dispatch`, which `read` makes, and ids, which
        `add_tokens` adds."""
        if isinstance(event, Delta):
            self.add(event.text)
            return
        if isinstance(event, Dispatch | OutputTokens):
            return
        self.size += 1
        if isinstance(event, BlockStart):
            self.blocks.append(LogBlock(event))
        elif isinstance(event, BlockStop):
            self.blocks[-1].stop = event
        else:
            self.terminal = event

    def read(self, cursor: Cursor, room: int = sys.maxsize) -> tuple[list[LoggedEvent], int]:
        """Reads the events after the cursor, with joined deltas, up to about `room` characters, and
        moves the cursor.

        Returns the events and the room that is left; if it is 0, there may be more to read.
        """
        out: list[LoggedEvent] = []
        if self.tokens.ids:
            tokens, room = self.tokens.read(cursor.tokens, room)
            if tokens is not None:
                out.append(tokens)
                cursor.tokens += len(tokens.ids)
        first = cursor.blocks - (not cursor.stopped)
        withheld_block, readable_length = self.withheld_after or (len(self.blocks), 0)
        for index in range(first, withheld_block + (readable_length > 0)):
            if room <= 0:
                return out, 0
            end = readable_length if index == withheld_block else None
            room = self._read_block(index, end, cursor, out, room)
        if self.terminal is not None and not cursor.ended:
            if room <= 0:
                return out, 0
            out.append(self.terminal)
            cursor.ended = True
            if isinstance(self.terminal, Interrupted):
                room -= len(self.terminal.token_ids) * 4 // 3  # in base64
        return out, max(room, 0)

    def _read_block(
        self, index: int, end: int | None, cursor: Cursor, out: list[LoggedEvent], room: int
    ) -> int:
        """Reads the events of one block after the cursor. `end`: of a block that is withheld, how
        many characters can be read; its stop cannot.

        Returns the room that is left: 0 if there is more text to read.
        """
        block = self.blocks[index]
        if index >= cursor.blocks:
            out.append(block.start)
            cursor.blocks = index + 1
            cursor.length = 0
            cursor.stopped = False
        length = block.length if end is None else end
        if cursor.length < length:
            text, logprobs, size = block.read(cursor.length, length, room)
            out.append(Delta(index, cursor.length, text, logprobs))
            cursor.length += len(text)
            room -= size + len(text)
            if cursor.length < length:
                return 0
        if block.stop is not None and end is None:
            dispatch = block.dispatch()
            if dispatch is not None:
                out.append(dispatch)
                room -= len(dispatch.arguments)
            out.append(block.stop)
            cursor.stopped = True
            room -= len(block.stop.seal or "")
        return room

    @property
    def end(self) -> tuple[int, int]:
        """The place (`Cursor.text_position`) after the last event."""
        if self.open_kind is None:
            return len(self.blocks), 0
        return len(self.blocks) - 1, self.blocks[-1].length

    @property
    def open_kind(self) -> BlockKind | None:
        """The kind of the open block; None: no block is open."""
        if not self.blocks or self.blocks[-1].stop is not None:
            return None
        return self.blocks[-1].start.kind


def _place(token: TokenLogprob) -> int:
    return token.at
