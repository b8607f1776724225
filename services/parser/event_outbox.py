"""The events that wait for their frontends, and the ends of turns that wait for credit.

All events of a tick are sent at its end, in one frame per frontend. A frontend without credit gets
later what its turns' logs have joined meanwhile.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice

from schemas.errors import as_turnwire_error
from schemas.events import Failed, TurnEvent
from schemas.frames import EventEntry, EventFrame
from services.parser.fast_path import NO_FAST_PATH
from services.parser.observer import ParserObserver
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.runtime.process import Process
from services.runtime.streams.frames import FRAME_BYTES


class EventOutbox:
    """The turns of one shard with events that their frontends lack."""

    def __init__(self, process: Process, observer: ParserObserver) -> None:
        self._process = process
        self._observer = observer
        self._unsent: dict[str, dict[str, TurnParse]] = {}
        """Frontend → its turns with unsent events."""
        self._ends: dict[str, deque[tuple[int, TurnParse]]] = {}
        """Frontend → (frame that carried a turn's last event, turn)."""

    def add(self, parsed: Sequence[TurnParse]) -> list[str]:
        """Adds turns with new events. Returns their frontends; turns of one frontend that follow
        each other count once."""
        frontends: list[str] = []
        frontend = ""
        for parse in parsed:
            stream = parse.stream
            if stream.frontend != frontend:
                frontend = stream.frontend
                frontends.append(frontend)
                unsent = self._unsent.setdefault(frontend, {})
            unsent[stream.turn] = parse
        return frontends

    def fill(self, frontend: str, seq: int) -> EventFrame | None:
        """Takes out a frontend's next frame, of about `FRAME_BYTES`; None: it has all events."""
        unsent = self._unsent.get(frontend)
        if not unsent:
            return None

        entries: list[EventEntry] = []
        room = FRAME_BYTES
        emptied = 0
        for parse in unsent.values():
            try:
                unread = parse.fast.next_entry(room)
                if unread is None:
                    unread = self._next_entry(parse, room, seq)
            except Exception as error:
                # One turn's failure (a defect) must not affect the others of its frontend.
                unread = self._failed_entry(parse, seq, error), room
            entry, room = unread
            if entry.events:
                entries.append(entry)
            if room <= 0:  # the turn may have more
                break
            emptied += 1

        if emptied == len(unsent):
            unsent.clear()
        else:
            for turn in list(islice(unsent, emptied)):
                del unsent[turn]
        return EventFrame(self._process.id, seq, entries, time.time()) if entries else None

    def _next_entry(self, parse: TurnParse, room: int, seq: int) -> tuple[EventEntry, int]:
        """Reads a turn's log. Returns its unsent events, and the room that is left; 0: there may be
        more to read."""
        stream = parse.stream
        events: list[TurnEvent] = []
        unread, room = parse.read(room)
        if not stream.announced:
            self._expect_heartbeats(stream)
            events.append(stream.announce(self._process.id))
        events += unread

        if room > 0:
            parse.enter_fast_path()
        if stream.sent.ended and events:
            self._end_in_frame(parse, seq)
        return EventEntry(stream.turn, stream.attempt, events, len(stream.ids)), room

    def _failed_entry(self, parse: TurnParse, seq: int, error: Exception) -> EventEntry:
        """Ends a turn with events that cannot be read. Returns the entry with its end."""
        stream = parse.stream
        self._observer.failed(stream.turn, error)
        parse.fast = NO_FAST_PATH
        end = Failed(as_turnwire_error(error, "the output could not be sent").info)
        if not parse.ended:
            stream.log.append(end)
            self._observer.ended(parse)
        events: list[TurnEvent] = [end]
        if not stream.announced:
            events.insert(0, stream.announce(self._process.id))
        self._end_in_frame(parse, seq)
        return EventEntry(stream.turn, stream.attempt, events, len(stream.ids))

    def _expect_heartbeats(self, stream: TurnStream) -> None:
        now = asyncio.get_running_loop().time()
        self._process.registry.expect_heartbeats("frontend", stream.frontend, now)
        self._process.registry.expect_heartbeats("worker", stream.worker, now)

    def _end_in_frame(self, parse: TurnParse, seq: int) -> None:
        parse.stream.end_seq = seq
        self._observer.end_sent(parse)
        self._ends.setdefault(parse.stream.frontend, deque()).append((seq, parse))

    def delivered(self, frontend: str, seq: int) -> list[TurnParse]:
        """Takes out the turns with an end that a frontend has, because it has all frames up to
        `seq`."""
        delivered: list[TurnParse] = []
        ends = self._ends.get(frontend)
        while ends and ends[0][0] <= seq:
            number, parse = ends.popleft()
            if parse.stream.end_seq == number:  # else it was rewound, and its end is sent again
                delivered.append(parse)
        return delivered

    def remove(self, parse: TurnParse) -> None:
        """Removes a turn; its events are not sent any more."""
        unsent = self._unsent.get(parse.stream.frontend, {})
        if unsent.get(parse.stream.turn) is parse:
            del unsent[parse.stream.turn]

    def forget(self, frontend: str) -> None:
        """Removes a frontend that is gone."""
        self._ends.pop(frontend, None)
        self._unsent.pop(frontend, None)
