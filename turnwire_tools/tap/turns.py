"""Follows turns on the bus from the request to the last event, and leaves out what is repeated.
Pure.

A turn may take several attempts, and its tokens and events may be sent more than once.
"""

from array import array
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
from cachetools import LRUCache
from msgspec import Struct, field

from schemas import events, frames, requests, token_ids
from schemas.control import Cancel
from schemas.conversation import Call, Conversation, Text
from schemas.events import Failed, Finish, FinishReason, LoggedEvent, corrected
from services.runtime.streams.cursor import Cursor, Verdict
from services.runtime.streams.turn_log import TurnLog
from turnwire_tools.replay.replay_file import RecordedEvents, RecordedPrompt, RecordedTokens

MAX_OPEN = 16_384
"""Turns that are followed at once."""
CONTINUED = ("superseded", "stop_string", "calls")
"""Reasons of a `Cancel` after which the turn goes on, or has a `Finish`."""

TOKEN_BYTES = 4
"""Bytes of an id in `resume`."""
NOT_PLACED = RecordedPrompt(0.0, attempt=0)

_decode_context = msgspec.json.Decoder(requests.ParseContext).decode


class FollowedTurn(Struct, dict=True):
    """One turn. `prompt` and `output` may be read once it has ended."""

    id: str
    time: float
    """Unix time of the request."""
    conversation: Conversation
    attempt: int = 1
    placed: RecordedPrompt = NOT_PLACED
    """The prompt of the newest attempt, as its worker received it."""
    context: requests.ParseContext | None = None
    """How the tokens are parsed."""
    steps: list[RecordedTokens | RecordedEvents] = []
    """Tokens of the attempt that ended the turn, and of those that it resumes; events of all
    attempts."""
    tokens: int = 0
    logprob_at: dict[int, float] = {}
    """Log probabilities by output index."""
    weights: list[events.WeightsSpan] = []
    """The versions of the weights that decoded the tokens."""
    experts: str = ""
    """The worker's file with the experts to which the tokens were routed; "": there is none."""
    images: list[events.PromptImage] = []
    """The images in the prompt."""
    stop: frames.TokenFinish | None = None
    """The end of the tokens, if the engine reported an end token."""
    last: Finish | Failed | None = None
    one_prompt: bool = True
    """All tokens were decoded after the same prompt."""
    cursor: Cursor = field(default_factory=Cursor)
    log: TurnLog = field(default_factory=TurnLog)

    def __repr__(self) -> str:
        end = self.reason or "no end"
        return f"turn {self.id}, attempt {self.attempt}, {self.tokens} tokens, {end}"

    @property
    def reason(self) -> FinishReason | None:
        """Why decoding ended; None: the turn failed, was cancelled, or has not ended."""
        if not isinstance(self.last, Finish):
            return None
        reason = self.last.reason
        if reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            return None
        return reason

    @property
    def count(self) -> int:
        """How many tokens the last event counts."""
        return self.last.usage.kept if isinstance(self.last, Finish) else 0

    @property
    def is_whole(self) -> bool:
        """Whether the last event has come, and as many tokens as it counts."""
        if self.last is None:
            return False
        end_tokens = int(self.stop is not None)
        return self.reason is None or self.tokens + end_tokens >= self.count

    @property
    def is_sequence(self) -> bool:
        """Whether there are tokens, all decoded after the same prompt, and their end."""
        if self.reason is None or not self.one_prompt:
            return False
        return self.count > 0 and len(self.prompt) > 0

    @cached_property
    def prompt(self) -> "array[int]":
        """The ids of the prompt."""
        return token_ids.unpack_array(self.placed.ids)

    @cached_property
    def output(self) -> "array[int]":
        """The ids that the last event counts: up to a cut, and with the end token if the engine
        reports one."""
        steps = (step.tokens for step in self.steps if isinstance(step, RecordedTokens))
        ids = array("I", chain.from_iterable(steps))
        if self.stop_id is None:
            return ids[: self.count]
        ids.append(self.stop_id)
        return ids

    @property
    def stop_id(self) -> int | None:
        """The end token, which is then the last of `output`."""
        return None if self._end is None else self._end.stop_id

    @property
    def _end(self) -> frames.TokenFinish | None:
        """The end token with its log probability, if the last event counts it."""
        return self.stop if self.tokens == self.count - 1 else None

    @property
    def logprobs(self) -> list[float | None]:
        """One for each output token; empty where the client did not ask for them."""
        logprob_at = dict(self.logprob_at)
        end = self._end
        if end is not None and end.logprobs:
            logprob_at[self.count - 1] = end.logprobs[0][1]
        if not logprob_at:
            return []
        return [logprob_at.get(at) for at in range(self.count)]

    @property
    def written(self) -> list[Text | Call]:
        """The text and calls, as the client received them."""
        written: list[Text | Call] = []
        for block in self.log.blocks:
            start = block.start
            text = block.text()
            if start.kind == "text":
                written.append(Text(text))
            elif start.kind != "reasoning":
                written.append(Call(start.call_id or "", start.name or "", text))
        return written

    def place(self, request: requests.GenerateRequest, worker: str, now: float) -> None:
        """Takes the request to a worker."""
        if request.attempt < self.attempt:
            return
        if self.placed is not NOT_PLACED:
            self._place_again(self.placed, request)
        self.attempt = request.attempt
        if self.context is None:
            self.context = _decode_context(request.context)
        self.images = request.images
        self.placed = RecordedPrompt(
            at=self._at(now),
            ids=request.prompt,
            worker=worker,
            parser=request.parser,
            attempt=request.attempt,
            reused=request.reused,
            recall=request.recall,
        )

    def _place_again(self, before: RecordedPrompt, request: requests.GenerateRequest) -> None:
        """Drops the tokens of the attempt before, except those that this one resumes."""
        if request.resume:
            self.one_prompt &= before.ids == request.prompt
        if request.attempt > before.attempt:
            self._cut(len(request.resume) // TOKEN_BYTES)
            self.stop = None
            self.context = None

    def _cut(self, count: int) -> None:
        """Keeps the first `count` tokens."""
        steps, self.steps = self.steps, []
        self.tokens = 0
        for step in steps:
            if isinstance(step, RecordedEvents):
                self.steps.append(step)
                continue
            kept = step.tokens[: count - self.tokens]
            if kept:
                self.steps.append(RecordedTokens(kept, step.at))
                self.tokens += len(kept)
        self.logprob_at = {at: value for at, value in self.logprob_at.items() if at < count}
        self.weights = [span for span in self.weights if span.at < count]

    def add_tokens(self, entry: frames.TokenEntry, now: float) -> None:
        """Adds the tokens that are new."""
        if entry.attempt < self.placed.attempt:
            return
        new = entry.ids[max(0, self.tokens - entry.at) :]
        if entry.at <= self.tokens and (new or entry.finish is not None):
            for span in entry.weights:
                start = max(span.at, self.tokens)
                self.weights = corrected(self.weights, [span._replace(at=start)])
        if entry.at <= self.tokens and new:
            self.tokens += len(new)
            self.steps.append(RecordedTokens(new, self._at(now)))
        for at, pairs in enumerate(entry.logprobs or (), entry.at):
            if pairs:
                self.logprob_at[at] = pairs[0][1]
        if entry.finish is not None:
            self._take_end(entry.finish)

    def _take_end(self, finish: frames.TokenFinish) -> None:
        if finish.stop_id is not None:
            self.stop = finish
        self.weights = corrected(self.weights, finish.weights)
        self.experts = finish.experts

    def add_events(self, entry: frames.EventEntry, now: float) -> None:
        """Adds the events that are new; a `Dispatch` follows from the others.

        As in the frontend, an attempt has no more events once the next one was requested.
        """
        if entry.attempt < self.attempt:
            return
        new: list[LoggedEvent] = []
        for event in entry.events:
            if isinstance(event, events.Prepared | events.HostedResults):
                continue
            accepted = self.cursor.accept(event)
            if accepted is Verdict.GAP:
                break
            if isinstance(
                accepted, events.BlockStart | events.Delta | events.BlockStop | Finish | Failed
            ):
                new.append(accepted)
                self.log.append(accepted)
        if new:
            self.steps.append(RecordedEvents(new, self._at(now)))
            newest = new[-1]
            self.last = newest if isinstance(newest, Finish | Failed) else None

    def _at(self, now: float) -> float:
        return round(max(0.0, now - self.time), 4)


class TurnFollower:
    """Takes the messages of a bus in the order in which they came."""

    def __init__(self, *, whole: bool = False) -> None:
        """`whole`: a turn ends when all its tokens have come, too. Another server of the bus may
        send them later."""
        self._whole = whole
        self._open: LRUCache[str, FollowedTurn] = LRUCache(MAX_OPEN)
        self.cancelled = 0
        """Turns that were cancelled."""

    @property
    def unfinished(self) -> int:
        """Turns that have not ended."""
        return len(self._open)

    def take(self, message: Any, now: float, receiver: str = "") -> list[FollowedTurn]:
        """Takes a message that came to `receiver` at this Unix time; returns the turns that it
        ends."""
        match message:
            case requests.TurnRequest():
                self._begin(message, now)
            case requests.GenerateRequest(turn=name, is_prefill=False) if name in self._open:
                self._open[name].place(message, receiver, now)
            case frames.TokenFrame() | frames.EventFrame():
                ended = []
                for entry in message.entries:
                    if entry.turn in self._open and self._add(entry, now):
                        ended.append(self._open.pop(entry.turn))
                return ended
            case Cancel(turn=name, reason=reason) if reason not in CONTINUED and name in self._open:
                del self._open[name]
                self.cancelled += 1
        return []

    def _begin(self, request: requests.TurnRequest, now: float) -> None:
        if request.turn in self._open:
            turn = self._open[request.turn]
            turn.attempt = max(turn.attempt, request.attempt)
        elif request.attempt == 1:  # the beginning of any other is missing
            self._open[request.turn] = FollowedTurn(request.turn, now, request.conversation)

    def _add(self, entry: frames.TokenEntry | frames.EventEntry, now: float) -> bool:
        """Adds an entry of an open turn; returns whether that has ended."""
        turn = self._open[entry.turn]
        if isinstance(entry, frames.TokenEntry):
            turn.add_tokens(entry, now)
        else:
            turn.add_events(entry, now)
        if self._whole:
            return turn.is_whole
        return turn.last is not None


def concerns(turn: str, query: str) -> bool:
    """Whether `query` is the turn's id, a part of it (four characters or more), or an id made of
    it."""
    if not turn:
        return False
    if len(query) < 4:
        return turn == query
    return query in turn or turn in query
