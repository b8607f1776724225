"""Follows turns on the bus: the prompt that a worker received and the tokens that it decoded. Pure.

A turn may take several attempts, and its tokens may be sent more than once. It is whole when its last event and as many
tokens as that event counts have come.
"""

from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
from cachetools import LRUCache
from msgspec import Struct, field

from schemas import frames
from schemas.control import Cancel
from schemas.conversation import Call, Conversation, Text
from schemas.events import BlockStart, BlockStop, Delta, Failed, Finish, FinishReason, TurnEvent
from services.cli.observer import TURN_GOES_ON
from services.runtime.streams.turn_log import Cursor, TurnLog

MAX_OPEN = 16_384
"""Turns that are followed at once."""

_decode_context = msgspec.json.Decoder(frames.ParseContext).decode


class DecodedTurn(Struct):
    """One turn, as its worker decoded it."""

    turn: str
    time: float
    """Unix time of the request."""
    conversation: Conversation
    prompt: "array[int]" = field(default_factory=lambda: array("I"))
    context: frames.ParseContext | None = None
    output: "array[int]" = field(default_factory=lambda: array("I"))
    """What `Usage.output` counts: with the end token, if the engine reported one, and without tokens behind a cut."""
    logprobs: list[float | None] = []
    """One for each output token; empty where the client did not ask for them."""
    stop_id: int | None = None
    """The end token, which is then the last of `output`."""
    reason: FinishReason = FinishReason.STOP
    written: list[Text | Call] = []
    """Its text and calls, as the client got them."""


class _OpenTurn(Struct):
    decoded: DecodedTurn
    attempt: int = 1
    packed: bytes = b""
    """The prompt of this attempt."""
    logprobs: dict[int, float] = {}
    """By output index."""
    stop: tuple[int, float | None] | None = None
    finish: Finish | None = None
    cursor: Cursor = field(default_factory=Cursor)
    log: TurnLog = field(default_factory=TurnLog)
    """Of the blocks."""

    def written(self) -> Iterator[Text | Call]:
        for block in range(self.log.blocks):
            start, text = self.log.ends(block)[0], self.log.text(block)
            if start.kind == "text":
                yield Text(text)
            elif start.kind == "tool_use":
                yield Call(start.call_id or "", start.name or "", text)


class TurnFollower:
    """Takes the messages of a bus in the order in which they came."""

    def __init__(self) -> None:
        self._open: LRUCache[str, _OpenTurn] = LRUCache(MAX_OPEN)
        self.dropped = 0
        """Turns that failed, were cancelled, decoded nothing, or of which something is missing."""

    @property
    def unfinished(self) -> int:
        """Turns whose end has not come."""
        return len(self._open)

    def take(self, message: Any, now: float) -> list[DecodedTurn]:
        """Takes a decoded message (`bus_view.decode`) that came at this Unix time; returns the turns that it ends."""
        match message:
            case frames.TurnRequest():
                self._begin(message, now)
            case frames.GenerateRequest(turn=turn) if turn in self._open:
                self._generate(self._open[turn], message)
            case frames.TokenFrame():
                return self._ended([entry.turn for entry in message.entries if self._tokens(entry)])
            case frames.EventFrame():
                events = ((entry, event) for entry in message.entries for event in entry.events)
                return self._ended([entry.turn for entry, event in events if self._event(entry, event)])
            case Cancel(turn=turn, reason=reason) if reason not in TURN_GOES_ON:
                self.dropped += self._open.pop(turn, None) is not None
        return []

    def _begin(self, request: frames.TurnRequest, now: float) -> None:
        turn = self._open.get(request.turn)
        if turn is None and request.attempt == 1:  # the beginning of any other is missing
            self._open[request.turn] = _OpenTurn(DecodedTurn(request.turn, now, request.conversation))

    def _generate(self, turn: _OpenTurn, request: frames.GenerateRequest) -> None:
        if request.attempt < turn.attempt or not request.parser:
            return
        if request.resume and turn.packed not in (b"", request.prompt):
            # The tokens before were decoded behind another prompt: there is no sequence that the model saw.
            del self._open[request.turn]
            self.dropped += 1
            return
        if request.attempt > turn.attempt and not request.resume:
            turn.decoded.output, turn.logprobs = array("I"), {}
        turn.attempt, turn.packed = request.attempt, request.prompt
        turn.decoded.prompt = frames.unpack_array(request.prompt)
        turn.decoded.context = _decode_context(request.context)

    def _tokens(self, entry: frames.TokenEntry) -> bool:
        """Adds the tokens that are new. Returns whether there may be enough now."""
        turn = self._open.get(entry.turn)
        if turn is None or entry.attempt != turn.attempt:
            return False
        output, have = turn.decoded.output, len(turn.decoded.output)
        if entry.at <= have:
            output.extend(entry.ids[have - entry.at :])
        for at, pairs in enumerate(entry.logprobs or (), entry.at):
            if pairs:
                turn.logprobs[at] = pairs[0][1]
        if entry.finish is not None and entry.finish.stop_id is not None:
            stop = entry.finish.logprobs
            turn.stop = entry.finish.stop_id, stop[0][1] if stop else None
        return turn.finish is not None

    def _event(self, entry: frames.EventEntry, event: TurnEvent) -> bool:
        """Takes an event. Returns whether the turn may be whole now."""
        turn = self._open.get(entry.turn)
        if turn is None or entry.attempt != turn.attempt:
            return False
        if isinstance(event, Failed) or (
            isinstance(event, Finish) and event.reason in (FinishReason.CANCELLED, FinishReason.ERROR)
        ):
            del self._open[entry.turn]
            self.dropped += 1
        elif isinstance(event, Finish):
            turn.finish = event
            return True
        elif isinstance(event, BlockStart | Delta | BlockStop):
            accepted = turn.cursor.accept(event)
            if isinstance(accepted, BlockStart | Delta | BlockStop):
                turn.log.append(accepted)
        return False

    def _ended(self, names: list[str]) -> list[DecodedTurn]:
        ended = []
        for name in dict.fromkeys(names):
            turn = self._open.get(name)
            if turn is None or turn.finish is None:
                continue
            decoded, count = turn.decoded, turn.finish.usage.output
            if turn.stop is not None and len(decoded.output) == count - 1:
                decoded.stop_id = turn.stop[0]
                decoded.output.append(turn.stop[0])
                if turn.stop[1] is not None:
                    turn.logprobs[count - 1] = turn.stop[1]
            if len(decoded.output) < count:
                continue  # they may come later: another server of the bus sent the event
            del self._open[name]
            if not count or not decoded.prompt:
                self.dropped += 1
                continue
            del decoded.output[count:]
            decoded.reason, decoded.written = turn.finish.reason, list(turn.written())
            if turn.logprobs:
                decoded.logprobs = [turn.logprobs.get(at) for at in range(count)]
            ended.append(decoded)
        return ended
