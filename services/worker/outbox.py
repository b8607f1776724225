"""The worker's outbox, which keeps every turn's tokens until they have arrived, and makes one frame
per shard and tick.

A turn's tokens are one list, bounded by its `max_tokens`, with an index up to which they were sent.
The list coalesces tokens while a shard grants no credit, and any part of it can be sent again.
Finished turns linger for a while, so that another shard can take over from one that died.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from math import isfinite

import msgspec
from msgspec import Raw

from schemas.control import Replay
from schemas.errors import STREAM_GONE, ErrorInfo, ErrorKind
from schemas.events import FinishReason
from schemas.frames import ABSENT, TokenEntry, TokenFinish, TokenFrame
from services.worker.engine import LOWEST_LOGPROB, Delta

TOKEN_BYTES = 8
"""A token id and its comma in JSON."""
LOGPROB_BYTES = 32
UNDELIVERED = 2
"""Factor by which a stream that did not arrive lingers longer than others."""

GONE = TokenFinish(
    FinishReason.CANCELLED,
    error=ErrorInfo(ErrorKind.ENGINE, "the worker has lost the turn", code=STREAM_GONE),
)

UNSENDABLE = ErrorInfo(ErrorKind.ENGINE, "the engine returned something that is not a token id")

Logprobs = list[list[tuple[int, float]]]
Key = tuple[str, int]
"""Turn and attempt."""


@dataclass(slots=True, eq=False, kw_only=True)
class TokenStream:
    """One turn's output tokens, and the position up to which its shard has them."""

    turn: str
    attempt: int
    parser: str
    frontend: str
    context: Raw
    """The parse context."""
    held: int = 0
    """Prompt tokens that are expected in the engine's KV cache."""
    ids: list[int]
    """Output tokens, those of an earlier attempt first: they are sent as if decoded here."""
    logprobs: Logprobs | None = None
    cached: int | None = None
    finish: TokenFinish | None = None
    sent: int = -1
    """The number of output tokens that were sent; -1: the parse context was not sent either."""
    finish_seq: int | None = None
    """The frame that carried the end."""
    prompt_tokens: int = 0
    """The prompt's tokens, without output of an earlier attempt."""
    opened_at: float = 0.0
    first_at: float = 0.0
    """When the engine's first tokens came, by the clock of `opened_at`; 0: not yet."""
    waited_s: float | None = None
    """How long the turn waited for a slot; None: the engine does not report it."""
    ended_at: float = 0.0
    resumed: int = 0
    """How many of `ids` are an earlier attempt's."""
    key: Key = ("", 0)
    cached_sent: int | None = None
    context_bytes: int = 0
    token_bytes: int = TOKEN_BYTES
    on_prefilled: Callable[[bool], None] | None = None
    """Called once by `prefilled`."""

    def __post_init__(self) -> None:
        self.key = (self.turn, self.attempt)
        self.resumed = len(self.ids)
        self.context_bytes = memoryview(self.context).nbytes

    def prefilled(self, *, computed: bool) -> None:
        """Ends the prefill: with the first tokens, or at the turn's end, `computed` or not. Later
        calls do nothing."""
        if (call := self.on_prefilled) is not None:
            self.on_prefilled = None
            call(computed)

    def add(self, delta: Delta) -> None:
        """Adds one engine step's result."""
        self.ids += delta.ids
        if delta.logprobs is not None or self.logprobs is not None:
            self._add_logprobs(delta)
        if delta.cached is not None:
            self.cached = delta.cached
            self.waited_s = delta.waited_s
        if delta.finish is not None:
            stop = [(token, _finite(value)) for token, value in delta.stop_logprobs or ()]
            self.finish = TokenFinish(delta.finish, delta.stop_id, logprobs=stop or None)

    def _add_logprobs(self, delta: Delta) -> None:
        """Adds log probabilities. Tokens without them (of an earlier attempt, of some steps) keep
        their places."""
        self.logprobs = self.logprobs or []
        fresh = [
            [(token, _finite(value)) for token, value in pairs] for pairs in delta.logprobs or []
        ]
        self.logprobs += [[] for _ in range(len(self.ids) - len(fresh) - len(self.logprobs))]
        self.logprobs += fresh
        widest = max(map(len, fresh), default=0)
        self.token_bytes = max(self.token_bytes, TOKEN_BYTES + LOGPROB_BYTES * widest)

    @property
    def started(self) -> bool:
        """Whether the engine has reported anything. Until then the turn waits for a slot or for its
        prefill."""
        return self.cached is not None or len(self.ids) > self.resumed

    @property
    def pending(self) -> bool:
        """Whether there is something to send."""
        return self.sent < len(self.ids) or (self.finish is not None and self.finish_seq is None)

    @property
    def least(self) -> int:
        """The approximate size of the smallest entry in bytes."""
        return self.context_bytes if self.sent < 0 else self.token_bytes

    def take(self, seq: int, room: int) -> tuple[TokenEntry, int]:
        """Takes what was not sent yet, `room` bytes or little more, for frame number `seq`.

        Returns the entry and the room that is left.
        """
        first = self.sent < 0
        at = 0 if first else self.sent
        if first:
            room -= self.context_bytes
        end = min(len(self.ids), at + max(room // self.token_bytes, 1))
        whole = end == len(self.ids)
        self.sent = end
        cached = self.cached if first or self.cached != self.cached_sent else None
        self.cached_sent = self.cached
        if whole and self.finish is not None:
            self.finish_seq = seq
        entry = TokenEntry(
            self.turn,
            self.attempt,
            at,
            self.ids[at:end],
            self.context if first else ABSENT,
            cached,
            self.logprobs[at:end] if self.logprobs is not None else None,
            self.finish if whole else None,
            self.held if first else 0,
        )
        return entry, room - (end - at) * self.token_bytes

    def take_tokens(self, room: int) -> TokenEntry | None:
        """As `take`, for nearly every step: there are only tokens, and they fit. Else None."""
        at, ids = self.sent, self.ids
        end = len(ids)
        if (
            at < 0
            or at == end
            or (end - at) * TOKEN_BYTES > room
            or self.finish is not None
            or self.logprobs is not None
            or self.cached != self.cached_sent
        ):
            return None
        self.sent = end
        return TokenEntry(self.turn, self.attempt, at, ids[at:])

    def break_off(self, at: int, error: ErrorInfo) -> None:
        """Ends the stream at `at` with an error: what follows cannot be sent."""
        del self.ids[at:]
        self.logprobs = self.cached = None
        self.finish = TokenFinish(FinishReason.ERROR, error=error)
        self.rewind(at)

    def rewind(self, offset: int) -> None:
        """Sends again from `offset` on, from 0 with the parse context; never moves forward."""
        self.sent = -1 if offset <= 0 else min(self.sent, offset)
        self.cached_sent = None
        self.finish_seq = None


class Outbox:
    """The token streams of one worker."""

    def __init__(
        self,
        worker: str,
        *,
        frame_bytes: int,
        linger_s: float,
        max_lingering: int = 4096,
        on_broken: Callable[[TokenStream], None] = lambda _: None,
    ) -> None:
        """`on_broken`: called from within `fill` and `take_back` for a stream that had to be broken
        off."""
        self._worker = worker
        self._on_broken = on_broken
        self._frame_bytes = frame_bytes
        self._linger_s = linger_s
        self._max_lingering = max_lingering
        self._live: dict[Key, TokenStream] = {}
        self._lingering: OrderedDict[Key, TokenStream] = OrderedDict()
        self._dirty: dict[str, dict[TokenStream, None]] = {}
        """For each shard: the streams with something to send."""
        self._credited: dict[str, int] = {}
        """For each shard: the last frame up to which it has everything."""
        self._gone: dict[str, dict[Key, TokenEntry]] = {}
        """For each shard: the entries that end streams which it lacks and which no longer exist."""

    def open(self, stream: TokenStream) -> None:
        """Adds the stream of an attempt. An earlier attempt continues to its end, which its shard
        must receive."""
        self._live[stream.key] = stream

    def find(self, turn: str, attempt: int) -> TokenStream | None:
        """The stream of an attempt, decoding or ended."""
        key = (turn, attempt)
        return self._live.get(key) or self._lingering.get(key)

    def schedule(self, stream: TokenStream) -> bool:
        """Notes that the stream has something to send. Returns whether no other stream of its shard
        had."""
        dirty = self._dirty.get(stream.parser)
        if dirty is None:
            dirty = self._dirty[stream.parser] = {}
        first = not dirty
        dirty[stream] = None
        return first

    def ended(self, stream: TokenStream, now: float) -> None:
        """Lets a stream linger after its decoding has ended; unsent tokens are still sent."""
        stream.ended_at = now
        del self._live[stream.key]
        self._lingering[stream.key] = stream
        if len(self._lingering) > self._max_lingering:
            self._drop(next(iter(self._lingering.values())))

    def expire(self, now: float) -> None:
        """Drops streams that have lingered long enough; undelivered ones linger longer."""
        for stream in list(self._lingering.values()):
            if now - stream.ended_at >= self._linger_s * (
                1 if self.delivered(stream) else UNDELIVERED
            ):
                self._drop(stream)

    def attached(self, now: float) -> None:
        """Lets all streams linger again, because nothing could be sent while this process was cut
        off from the bus."""
        # rare: a worker was cut off and is no longer
        for stream in self._lingering.values():
            stream.ended_at = now

    def _drop(self, stream: TokenStream) -> None:
        del self._lingering[stream.key]
        self._dirty.get(stream.parser, {}).pop(stream, None)
        if not self.delivered(stream):
            self._end_gone(stream.parser, stream.key, max(stream.sent, 0))

    def _end_gone(self, parser: str, key: Key, offset: int) -> None:
        """Lets a shard end a stream that no longer exists: no other process would."""
        self._gone.setdefault(parser, {})[key] = TokenEntry(*key, offset, finish=GONE)

    def fill(self, parser: str, seq: int) -> TokenFrame | None:
        """Returns the next frame for a shard: all that its streams have to send, up to the frame
        limit."""
        dirty = self._dirty.get(parser)
        if not dirty:
            gone = self._gone.pop(parser, None)
            return TokenFrame(self._worker, seq, list(gone.values())) if gone else None
        entries: list[TokenEntry] = []
        try:
            self._collect(parser, seq, dirty, entries)
        except Exception:
            self.take_back(parser, TokenFrame(self._worker, seq, entries))
            raise
        return TokenFrame(self._worker, seq, entries) if entries else None

    def _collect(
        self, parser: str, seq: int, dirty: dict[TokenStream, None], entries: list[TokenEntry]
    ) -> None:
        room = self._frame_bytes
        for stream in list(dirty):
            if (tokens := stream.take_tokens(room)) is not None:
                entries.append(tokens)
                room -= len(tokens.ids) * TOKEN_BYTES
                del dirty[stream]
                continue
            if not stream.pending:  # scheduled twice in one tick
                del dirty[stream]
                continue
            if entries and stream.least > room:
                break
            at = max(stream.sent, 0)
            try:
                entry, room = stream.take(seq, room)
            except Exception:
                self._break_off(stream, at)
                raise
            entries.append(entry)
            if not stream.pending:
                del dirty[stream]

    def take_back(self, parser: str, frame: msgspec.Struct) -> bool:
        """Takes back a frame that was not sent: its streams are sent again from where it began.

        A stream ends there if its entry cannot be encoded, because the engine's ids are not
        integers or its log probabilities not numbers. Returns whether any did.
        """
        assert isinstance(frame, TokenFrame)
        blamed = False
        for entry in frame.entries:
            stream = self.find(entry.turn, entry.attempt)
            if stream is None or stream.parser != parser:
                continue
            if _can_be_sent(entry):
                stream.rewind(entry.at)
            else:
                blamed = True
                self._break_off(stream, entry.at)
            self.schedule(stream)
        return blamed

    def _break_off(self, stream: TokenStream, at: int) -> None:
        stream.break_off(at, UNSENDABLE)
        self._on_broken(stream)

    def credited(self, parser: str, seq: int) -> None:
        """Notes that a shard has everything up to frame `seq`."""
        self._credited[parser] = max(seq, self._credited.get(parser, 0))

    def delivered(self, stream: TokenStream) -> bool:
        """Whether the shard has all of a stream, its end included."""
        return stream.finish_seq is not None and stream.finish_seq <= self._credited.get(
            stream.parser, 0
        )

    def replay(self, request: Replay) -> None:
        """Rewinds the streams that the shard names; with `all` also every other one that it may not
        have to its end.

        Streams that no longer exist are ended.
        """
        named = {(position.turn, position.attempt): position for position in request.streams}
        for key, asked in named.items():
            if key not in self._live and key not in self._lingering:
                self._end_gone(request.receiver, key, asked.offset)
        for stream in list(self.streams()):
            if stream.parser != request.receiver:
                continue
            position = named.get(stream.key)
            if position is not None:
                stream.rewind(position.offset)
            elif request.all and stream.sent >= 0 and not self.delivered(stream):
                stream.rewind(0)
            else:
                continue
            self.schedule(stream)

    def confirm(self, parser: str, frontends: Container[str]) -> None:
        """Drops the finished streams of a shard that left without open turns: these frontends have
        them."""
        for stream in list(self._lingering.values()):
            if stream.parser == parser and stream.frontend in frontends and self.delivered(stream):
                self._drop(stream)

    def move(self, gone: str, to: str) -> int:
        """Moves the streams of a shard that is gone to another one, which gets them from the start.
        Returns how many."""
        self._dirty.pop(gone, None)
        self._credited.pop(gone, None)
        self._gone.pop(gone, None)
        moved = [stream for stream in self.streams() if stream.parser == gone]
        for stream in moved:
            stream.parser = to
            # rare: a turn moves to another parser
            stream.rewind(0)
            self.schedule(stream)
        return len(moved)

    @property
    def busy(self) -> bool:
        """Whether any turn decodes."""
        return bool(self._live)

    def undelivered(self) -> Iterator[TokenStream]:
        """The ended streams that their shard does not have yet."""
        return (stream for stream in self._lingering.values() if not self.delivered(stream))

    def streams(self) -> Iterator[TokenStream]:
        """All streams, decoding and lingering."""
        yield from self._live.values()
        yield from self._lingering.values()


def _can_be_sent(entry: TokenEntry) -> bool:
    try:
        msgspec.json.encode(entry)
    except Exception:  # any kind: msgspec calls methods of the objects
        return False
    return True


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB) if isfinite(logprob) else LOWEST_LOGPROB
