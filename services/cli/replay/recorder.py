"""Turns on the bus as a replay file: what was asked, which tokens came, and what was made of them. Pure.

A turn is written when it has ended. What another attempt says again is left out, as the frontend leaves it out. Keys of
the API are never on the bus; who asked (`client`) and the cache salt are left out here.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from schemas.control import Cancel
from schemas.conversation import Client, Conversation, Hints
from schemas.events import BlockStart, BlockStop, Delta, Failed, Finish, Prepared, TurnEvent, Usage
from schemas.frames import EventFrame, GenerateRequest, ParseContext, TokenEntry, TokenFrame, TurnRequest
from services.cli.replay.answer import story_of
from services.cli.replay.redaction import Redaction
from services.cli.replay.script import VERSION, End, Story
from services.runtime.turnlog import Cursor, Verdict

MAX_OPEN = 4096
_decode_context = msgspec.json.Decoder(ParseContext).decode


class _Line(Struct, omit_defaults=True):
    """A line of a recorded turn."""

    conversation: Conversation | UnsetType = UNSET
    recorded: dict[str, Any] | UnsetType = UNSET
    context: ParseContext | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    events: list[TurnEvent] | UnsetType = UNSET
    tokens: list[int] | UnsetType = UNSET
    at: float | UnsetType = UNSET
    expect: Story | UnsetType = UNSET
    end: End | UnsetType = UNSET


class _Recording:
    """One turn so far."""

    def __init__(self, turn: str, conversation: Conversation, started: float) -> None:
        self.turn = turn
        self.conversation = conversation
        self.started = started
        self.attempt = 1
        self.context: ParseContext | None = None
        self.steps: list[_Line] = []
        self.events: list[TurnEvent] = []
        self.tokens = 0
        self.cursor = Cursor()

    def add_tokens(self, entry: TokenEntry, now: float) -> None:
        fresh = entry.ids[max(0, self.tokens - entry.at) :]
        if entry.at <= self.tokens and fresh:
            self.tokens += len(fresh)
            self.steps.append(_Line(tokens=fresh, at=self._at(now)))

    def add_events(self, events: Iterable[TurnEvent], now: float) -> Finish | Failed | None:
        """Takes what is new; returns the end, if it came."""
        fresh: list[TurnEvent] = []
        for event in events:
            if isinstance(event, Prepared):
                continue
            taken = self.cursor.accept(event)
            if isinstance(taken, BlockStart | BlockStop | Delta | Finish | Failed):
                fresh.append(taken)
            elif taken is Verdict.GAP:
                break
        if fresh:
            self.steps.append(_Line(events=fresh, at=self._at(now)))
        self.events += fresh
        return next((event for event in fresh if isinstance(event, Finish | Failed)), None)

    def _at(self, now: float) -> float:
        return round(max(0.0, now - self.started), 4)

    def lines(self, last: Finish | Failed) -> list[_Line]:
        usage = last.usage if isinstance(last, Finish) else Usage()
        head = {"turn": self.turn, "model": self.conversation.model, "time": self.started}
        found = [_Line(conversation=self.conversation, recorded=head)]
        if self.context is not None:
            found.append(_Line(context=self.context))
        found.append(_Line(usage=Usage(usage.prompt, usage.cached)))
        found += self.steps
        story = story_of(self.events)
        return [*found, _Line(expect=story, end=_end(last, story))]


class Recorder:
    """Follows the turns on a bus. `redact`: letters of all texts become x."""

    def __init__(self, *, redact: bool = False) -> None:
        self._redact = redact
        self._open: dict[str, _Recording] = {}

    @staticmethod
    def head() -> bytes:
        """The first line of a new file."""
        return msgspec.json.encode({"replay": VERSION, "about": "Recorded by `turnwire tap --record`."}) + b"\n"

    @property
    def unfinished(self) -> int:
        """Turns whose end has not come."""
        return len(self._open)

    def take(self, message: Any, now: float) -> list[bytes]:
        """A message of the bus; returns each turn that has ended with it, as lines."""
        match message:
            case TurnRequest():
                self._asked(message, now)
            case GenerateRequest(turn=turn) if turn in self._open:
                recording = self._open[turn]
                recording.context = recording.context or _context(message.context)
            case TokenFrame():
                for entry in message.entries:
                    if entry.turn in self._open:
                        self._open[entry.turn].add_tokens(entry, now)
            case EventFrame():
                return list(self._events(message, now))
            case Cancel(turn=turn, reason=reason) if reason not in ("superseded", "stop_string", "calls"):
                self._open.pop(turn, None)
        return []

    def _asked(self, request: TurnRequest, now: float) -> None:
        held = self._open.get(request.turn)
        if held is not None:
            held.attempt = max(held.attempt, request.attempt)
            return
        if request.attempt > 1:
            return  # its beginning was not heard
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        conversation = msgspec.structs.replace(request.conversation, client=Client(), hints=Hints())
        self._open[request.turn] = _Recording(request.turn, conversation, now)

    def _events(self, frame: EventFrame, now: float) -> Iterator[bytes]:
        for entry in frame.entries:
            recording = self._open.get(entry.turn)
            if recording is None or entry.attempt < recording.attempt:
                continue
            last = recording.add_events(entry.events, now)
            if last is not None:
                del self._open[entry.turn]
                yield self._written(recording, last)

    def _written(self, recording: _Recording, last: Finish | Failed) -> bytes:
        lines: list[Any] = [msgspec.to_builtins(line) for line in recording.lines(last)]
        if self._redact:
            lines = Redaction().turn(lines)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _context(raw: Raw) -> ParseContext:
    return msgspec.structs.replace(_decode_context(raw), frontend="", ledger=None)


def _end(last: Finish | Failed, story: Story) -> End:
    if isinstance(last, Failed):
        return "error"
    if last.reason in ("length", "context"):
        return "length"
    if last.reason in ("cancelled", "error"):
        return "error"
    return "calls" if last.reason == "stop" and any(kind == "call" for kind, _ in story) else "stop"
