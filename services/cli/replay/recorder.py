"""Writes turns on the bus as a replay file: the request, the tokens, and the events made of them. Pure.

A turn is written when it has ended. What another attempt repeats is left out, as the frontend leaves it out. API keys
are never on the bus; the sender of a request (`client`) and the cache salt are left out here.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from cachetools import LRUCache
from msgspec import Raw, Struct, field

from schemas import frames
from schemas.control import Cancel
from schemas.conversation import Client, Conversation, Hints
from schemas.events import BlockStart, BlockStop, Delta, Failed, Finish, HostedResults, Prepared, TurnEvent, Usage
from services.cli.observer import TURN_GOES_ON
from services.cli.replay import script
from services.cli.replay.answer import story_of
from services.cli.replay.redaction import redact
from services.runtime.streams.turn_log import Cursor, Verdict

MAX_OPEN = 4096
_decode_context = msgspec.json.Decoder(frames.ParseContext).decode


class _Recording(Struct):
    """One turn so far."""

    turn: str
    conversation: Conversation
    started: float
    attempt: int = 1
    context: frames.ParseContext | None = None
    prompt: script.RecordedPrompt | None = None
    steps: list[script.Step] = []
    events: list[TurnEvent] = []
    tokens: int = 0
    cursor: Cursor = field(default_factory=Cursor)

    def add_tokens(self, entry: frames.TokenEntry, now: float) -> None:
        """Adds the tokens that are new."""
        new = entry.ids[max(0, self.tokens - entry.at) :]
        if entry.at <= self.tokens and new:
            self.tokens += len(new)
            self.steps.append(script.RecordedTokens(new, self._at(now)))

    def add_events(self, events: Iterable[TurnEvent], now: float) -> Finish | Failed | None:
        """Adds the events that are new; returns the last one of the turn. The player makes `Dispatch` again."""
        new: list[TurnEvent] = []
        for event in events:
            if isinstance(event, Prepared | HostedResults):
                continue
            accepted = self.cursor.accept(event)
            if isinstance(accepted, BlockStart | BlockStop | Delta | Finish | Failed):
                new.append(accepted)
            elif accepted is Verdict.GAP:
                break
        if new:
            self.steps.append(script.RecordedEvents(new, self._at(now)))
        self.events += new
        return next((event for event in new if isinstance(event, Finish | Failed)), None)

    def add_prompt(self, request: frames.GenerateRequest, worker: str, now: float) -> None:
        """Keeps the prompt of the newest attempt."""
        self.prompt = script.RecordedPrompt(
            self._at(now), request.prompt, worker, request.parser, request.attempt, request.reused, request.recall
        )

    def _at(self, now: float) -> float:
        return round(max(0.0, now - self.started), 4)

    def lines(self, last: Finish | Failed) -> Iterator[script.TurnStart | script.Step | script.TurnProperties]:
        """The lines of the file."""
        usage = last.usage if isinstance(last, Finish) else Usage()
        recorded = {"turn": self.turn, "model": self.conversation.model, "time": self.started}
        yield script.TurnStart(conversation=self.conversation, recorded=recorded)
        if self.context is not None:
            yield script.TurnProperties(context=self.context)
        if self.prompt is not None:
            yield script.TurnProperties(prompt=self.prompt)
        yield script.TurnProperties(usage=Usage(usage.prompt, usage.cached))
        yield from self.steps
        story = story_of(self.events)
        yield script.TurnProperties(expect=story, end=_end(last, story))


class Recorder:
    """Follows the turns on a bus. `redact`: masks the letters of all texts."""

    def __init__(self, *, redact: bool = False) -> None:
        self._redact = redact
        self._open: LRUCache[str, _Recording] = LRUCache(MAX_OPEN)

    @staticmethod
    def head() -> bytes:
        """The first line of a new file."""
        return msgspec.json.encode({"replay": script.VERSION, "about": "Recorded by `turnwire tap --record`."}) + b"\n"

    @property
    def unfinished(self) -> int:
        """The number of turns that have not ended."""
        return len(self._open)

    def take(self, message: Any, now: float, receiver: str = "") -> list[bytes]:
        """Takes a message of the bus to `receiver`; returns the lines of each turn that it ends."""
        match message:
            case frames.TurnRequest():
                self._begin(message, now)
            case frames.GenerateRequest(turn=turn) if turn in self._open:
                recording = self._open[turn]
                recording.context = recording.context or _context(message.context)
                if message.parser:
                    recording.add_prompt(message, receiver, now)
            case frames.TokenFrame():
                for entry in message.entries:
                    if entry.turn in self._open:
                        self._open[entry.turn].add_tokens(entry, now)
            case frames.EventFrame():
                return list(self._end_turns(message, now))
            case Cancel(turn=turn, reason=reason) if reason not in TURN_GOES_ON:
                self._open.pop(turn, None)
        return []

    def _begin(self, request: frames.TurnRequest, now: float) -> None:
        recording = self._open.get(request.turn)
        if recording is not None:
            recording.attempt = max(recording.attempt, request.attempt)
        elif request.attempt == 1:  # the beginning of any other is missing
            conversation = msgspec.structs.replace(request.conversation, client=Client(), hints=Hints())
            self._open[request.turn] = _Recording(request.turn, conversation, now)

    def _end_turns(self, frame: frames.EventFrame, now: float) -> Iterator[bytes]:
        for entry in frame.entries:
            recording = self._open.get(entry.turn)
            if recording is None or entry.attempt < recording.attempt:
                continue
            last = recording.add_events(entry.events, now)
            if last is not None:
                del self._open[entry.turn]
                lines = [msgspec.to_builtins(line) for line in recording.lines(last)]
                lines = redact(lines) if self._redact else lines
                yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _context(raw: Raw) -> frames.ParseContext:
    return msgspec.structs.replace(_decode_context(raw), frontend="", ledger=None, tenant=None, prompt_ids=b"")


def _end(last: Finish | Failed, story: script.Story) -> script.End:
    if isinstance(last, Failed) or last.reason in ("cancelled", "error"):
        return "error"
    if last.reason in ("length", "context"):
        return "length"
    return "calls" if last.reason == "stop" and any(kind == "call" for kind, _ in story) else "stop"
