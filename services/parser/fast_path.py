"""The fast path of a turn in a plain stretch of a block: its tokens become text by a look-up,
without parser and log. Pure.

Most tokens are whole characters in a plain stretch, where the text depends on the token alone. A
turn has a `PlainPath` from the time when all its events were read until the first token that is not
plain, or until anything else is read or done; then `TurnParse` brings log and parser up to date.
"""

from typing import Final

from typing_extensions import override

from schemas.events import Delta
from schemas.frames import EventEntry, TokenEntry
from services.parser.block_reader import BlockReader
from services.parser.turn_stream import TurnStream
from services.tokenization.plain_tokens import PlainTexts

UNREAD = 4096
"""Unread characters with which a turn leaves the fast path: the log joins them at less cost."""


class FastPath:
    """The fast path of a turn. This one takes nothing, because the turn's tokens must be parsed; a
    `PlainPath` does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "not on the fast path"

    def append(self, entry: TokenEntry) -> bool:
        """Takes an entry. Returns False, and changes nothing, if it must be parsed."""
        return False

    def next_entry(self, room: int) -> tuple[EventEntry, int] | None:
        """Returns the text that was not read, for a frame to the frontend, and the room that it
        leaves; None, and changes nothing, if it takes all room, or if the events are in the log."""
        return None

    def leave(self, stream: TurnStream, blocks: BlockReader) -> None:
        """Brings log and parser up to date with the tokens since the turn entered the fast path."""


NO_FAST_PATH: Final = FastPath()


class PlainPath(FastPath):
    """The text of a turn's tokens since it entered a plain stretch.

    The code touches few objects, because between two frames the CPU's caches hold other data:
    memory accesses take five times as long as the instructions (measured).
    """

    __slots__ = ("_attempt", "_block", "_ids", "_plain", "_start", "_turn", "fresh", "offset")

    def __init__(self, stream: TurnStream, plain: PlainTexts) -> None:
        """`plain`: the texts of tokens in this stretch."""
        self._turn = stream.turn
        self._attempt = stream.attempt
        self._ids = stream.ids
        self._start = len(stream.ids)
        self._plain = plain
        self._block, self.offset = stream.log.end
        """Up to where the text was read, as `Cursor.text_position`."""
        self.fresh = ""
        """The text that was not read."""

    @override
    def __repr__(self) -> str:
        return f"fast path to {self.offset}"

    @override
    def append(self, entry: TokenEntry) -> bool:
        if entry.at != len(self._ids) or entry.attempt != self._attempt:
            return False
        if entry.finish is not None or entry.cached is not None:
            return False
        fresh = self.fresh
        if len(fresh) > UNREAD:
            return False

        ids = entry.ids
        if len(ids) == 1:
            token = ids[0]
            text = self._plain[token]
            if text is None:
                return False
            self._ids.append(token)
        else:
            text = self._plain.run(ids)
            if text is None:
                return False
            self._ids.extend(ids)
        self.fresh = fresh + text
        return True

    @override
    def next_entry(self, room: int) -> tuple[EventEntry, int] | None:
        text = self.fresh
        room -= len(text)
        if room <= 0:
            return None
        if not text:
            return EventEntry(self._turn, self._attempt, []), room
        delta = Delta(self._block, self.offset, text)
        self.offset += len(text)
        self.fresh = ""
        return EventEntry(self._turn, self._attempt, [delta], len(self._ids)), room

    @override
    def leave(self, stream: TurnStream, blocks: BlockReader) -> None:
        text = self._plain.text(self._ids[self._start :])
        if text:
            blocks.add_plain(text)
        stream.sent.length = self.offset
        blocks.count_reasoning()
