"""The worker's outbox: every turn's tokens, kept until they arrived, drained into one frame per shard and tick.

A turn's tokens are one list; what was sent is an index into it. That list is at once the buffer that coalesces when a
shard grants no credit, and the memory from which any part is sent again. It is bounded by the turn's own `max_tokens`.
Finished turns linger for a while, so that another shard can take over from one that died.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from math import isfinite

import msgspec
from msgspec import Raw

from schemas.control import Replay
from schemas.errors import STREAM_GONE, ErrorInfo, ErrorKind
from schemas.events import FinishReason
from schemas.frames import ABSENT, TokenEntry, TokenFinish, TokenFrame
from services.worker.engine import Delta

TOKEN_BYTES = 8
"""A token id and its comma in JSON."""
LOGPROB_BYTES = 32
UNDELIVERED = 8
"""So many times longer than others lingers a stream that did not arrive."""

LOWEST = -9999.0
"""What stands for the log probability of what cannot be: JSON has no infinity. OpenAI's value (apis.md C.2)."""

GONE = TokenFinish(
    FinishReason.CANCELLED,
    error=ErrorInfo(ErrorKind.ENGINE, "the worker has lost the turn", code=STREAM_GONE),
)

UNSENDABLE = ErrorInfo(ErrorKind.ENGINE, "the engine has given something that is no token")

Logprobs = list[list[tuple[int, float]]]
Key = tuple[str, int]
"""Turn and attempt."""

_encode = msgspec.json.Encoder().encode


class TokenStream:
    """One turn's output tokens and how far its shard has them."""

    __slots__ = (
        "_cached_sent",
        "_context_bytes",
        "_token_bytes",
        "attempt",
        "cached",
        "context",
        "delivered",
        "ended_at",
        "finish",
        "finish_seq",
        "frontend",
        "ids",
        "key",
        "logprobs",
        "parser",
        "resumed",
        "sent",
        "turn",
    )

    def __init__(self, turn: str, attempt: int, *, parser: str, frontend: str, context: Raw, resume: list[int]) -> None:
        """`resume`: output tokens of an earlier attempt; they are sent as if decoded here."""
        self.turn = turn
        self.attempt = attempt
        self.key: Key = (turn, attempt)
        self.parser = parser
        self.frontend = frontend
        self.context = context
        self._context_bytes = memoryview(context).nbytes
        self._token_bytes = TOKEN_BYTES
        self.ids = resume
        self.resumed = len(resume)
        self.logprobs: Logprobs | None = None
        self.cached: int | None = None
        self._cached_sent: int | None = None
        self.finish: TokenFinish | None = None
        self.sent = -1
        """Output tokens that were sent; -1: not even the parse context."""
        self.finish_seq: int | None = None
        """The frame which carried the end."""
        self.delivered = False
        """The shard has all of it."""
        self.ended_at = 0.0

    def add(self, delta: Delta) -> None:
        """One engine step's tokens."""
        self.ids += delta.ids
        if delta.logprobs is not None or self.logprobs is not None:
            self._add_logprobs(delta)
        if delta.cached is not None:
            self.cached = delta.cached
        if delta.finish is not None:
            self.finish = TokenFinish(delta.finish, delta.stop_id)

    def _add_logprobs(self, delta: Delta) -> None:
        """Tokens without any (of an earlier attempt, of a step that brought none) keep their places."""
        self.logprobs = self.logprobs or []
        given = [[(token, _finite(value)) for token, value in told] for told in delta.logprobs or []]
        self.logprobs += [[] for _ in range(len(self.ids) - len(given) - len(self.logprobs))]
        self.logprobs += given
        widest = max(map(len, given), default=0)
        self._token_bytes = max(self._token_bytes, TOKEN_BYTES + LOGPROB_BYTES * widest)

    @property
    def pending(self) -> bool:
        """Whether there is something to send."""
        return self.sent < len(self.ids) or (self.finish is not None and self.finish_seq is None)

    @property
    def least(self) -> int:
        """Bytes that the smallest entry would have, about."""
        return self._context_bytes if self.sent < 0 else self._token_bytes

    def take(self, seq: int, room: int) -> tuple[TokenEntry, int]:
        """What was not sent yet, `room` bytes or little more; the frame that takes it has number `seq`.

        Returns the entry and the room that is left.
        """
        first = self.sent < 0
        at = 0 if first else self.sent
        if first:
            room -= self._context_bytes
        end = min(len(self.ids), at + max(room // self._token_bytes, 1))
        whole = end == len(self.ids)
        self.sent = end
        cached = self.cached if first or self.cached != self._cached_sent else None
        self._cached_sent = self.cached
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
        )
        return entry, room - (end - at) * self._token_bytes

    def take_tokens(self, room: int) -> TokenEntry | None:
        """As `take`, where tokens are all that is there and they fit: what nearly every step brings. Else None."""
        at, ids = self.sent, self.ids
        end = len(ids)
        if (
            at < 0
            or at == end
            or (end - at) * TOKEN_BYTES > room
            or self.finish is not None
            or self.logprobs is not None
            or self.cached != self._cached_sent
        ):
            return None
        self.sent = end
        return TokenEntry(self.turn, self.attempt, at, ids[at:])

    def break_off(self, at: int, error: ErrorInfo) -> None:
        """What follows `at` cannot be sent: the stream ends there, with an error."""
        del self.ids[at:]
        self.logprobs = self.cached = None
        self.finish = TokenFinish(FinishReason.ERROR, error=error)
        self.rewind(at)

    def rewind(self, offset: int) -> None:
        """Send again from `offset` on, from 0 with the parse context; never moves forward."""
        self.sent = -1 if offset <= 0 else min(self.sent, offset)
        self._cached_sent = None
        self.finish_seq = None
        self.delivered = False


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
        """`on_broken`: a stream had to be broken off; called from within `fill` and `take_back`."""
        self._worker = worker
        self._on_broken = on_broken
        self._frame_bytes = frame_bytes
        self._linger_s = linger_s
        self._max_lingering = max_lingering
        self._live: dict[Key, TokenStream] = {}
        self._lingering: OrderedDict[Key, TokenStream] = OrderedDict()
        self._dirty: dict[str, dict[Key, TokenStream]] = {}
        self._ends: dict[str, deque[tuple[int, TokenStream]]] = {}
        self._gone: dict[str, dict[Key, TokenEntry]] = {}
        """For each shard: what ends the streams that it asked for and that are here no more."""

    def open(self, stream: TokenStream) -> None:
        """An attempt at a turn begins. A former one goes on to its own end, for its shard must hear of it."""
        self._live[stream.key] = stream

    def find(self, turn: str, attempt: int) -> TokenStream | None:
        """The stream of an attempt, decoding or over."""
        key = (turn, attempt)
        return self._live.get(key) or self._lingering.get(key)

    def mark(self, stream: TokenStream) -> bool:
        """The stream has something to send. True where no other of its shard had."""
        dirty = self._dirty.get(stream.parser)
        if dirty is None:
            dirty = self._dirty[stream.parser] = {}
        first = not dirty
        dirty[stream.key] = stream
        return first

    def ended(self, stream: TokenStream, now: float) -> None:
        """Decoding is over; what is unsent still goes out, and the stream lingers."""
        stream.ended_at = now
        del self._live[stream.key]
        self._lingering[stream.key] = stream
        if len(self._lingering) > self._max_lingering:
            self._drop(next(iter(self._lingering.values())))

    def expire(self, now: float) -> None:
        """Lets go of streams that have lingered long enough. What a shard does not take is kept much longer."""
        for stream in list(self._lingering.values()):
            if now - stream.ended_at >= self._linger_s * (1 if stream.delivered else UNDELIVERED):
                self._drop(stream)

    def _drop(self, stream: TokenStream) -> None:
        del self._lingering[stream.key]
        self._dirty.get(stream.parser, {}).pop(stream.key, None)

    def fill(self, parser: str, seq: int) -> TokenFrame | None:
        """The next frame for a shard: everything of all its streams, up to the frame limit."""
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

    def _collect(self, parser: str, seq: int, dirty: dict[Key, TokenStream], entries: list[TokenEntry]) -> None:
        room = self._frame_bytes
        for key, stream in list(dirty.items()):
            if (tokens := stream.take_tokens(room)) is not None:
                entries.append(tokens)
                room -= len(tokens.ids) * TOKEN_BYTES
                del dirty[key]
                continue
            if not stream.pending:  # marked twice in one tick
                del dirty[key]
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
                del dirty[key]
            if entry.finish is not None:
                self._ends.setdefault(parser, deque()).append((seq, stream))

    def take_back(self, parser: str, frame: msgspec.Struct) -> bool:
        """A frame was not sent after all: its streams go out again from where it began. Those whose part of it cannot
        be encoded, for an engine has given what is no token id or no number, end there. True where there were such.
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
            self.mark(stream)
        return blamed

    def _break_off(self, stream: TokenStream, at: int) -> None:
        stream.break_off(at, UNSENDABLE)
        self._on_broken(stream)

    def credited(self, parser: str, seq: int) -> None:
        """A shard has everything up to frame `seq`: streams whose end was in it are delivered."""
        ends = self._ends.get(parser)
        while ends and ends[0][0] <= seq:
            number, stream = ends.popleft()
            if stream.finish_seq == number:  # else it was rewound since, and its end goes out again
                stream.delivered = True

    def replay(self, request: Replay) -> None:
        """Rewinds what the shard asks for, and with `all` every other stream of which it may not have the end. What is
        not here any more is ended: nobody else would tell the shard."""
        named = {(standing.turn, standing.attempt): standing for standing in request.streams}
        for key in named.keys() - self._live.keys() - self._lingering.keys():
            self._gone.setdefault(request.receiver, {})[key] = TokenEntry(*key, named[key].offset, finish=GONE)
        for stream in list(self._all()):
            if stream.parser != request.receiver:
                continue
            standing = named.get(stream.key)
            if standing is not None:
                stream.rewind(standing.offset)
            elif request.all and stream.sent >= 0 and not stream.delivered:
                stream.rewind(0)
            else:
                continue
            self.mark(stream)

    def move(self, gone: str, to: str) -> int:
        """Sends every stream of a shard that is gone to another one, from its start. Returns how many."""
        self._dirty.pop(gone, None)
        self._ends.pop(gone, None)
        self._gone.pop(gone, None)
        moved = [stream for stream in self._all() if stream.parser == gone]
        for stream in moved:
            stream.parser = to
            stream.rewind(0)
            self.mark(stream)
        return len(moved)

    @property
    def busy(self) -> bool:
        """Whether anything decodes."""
        return bool(self._live)

    def undelivered(self) -> Iterator[TokenStream]:
        """Turns that ended here and are not with their shard yet."""
        return (stream for stream in self._lingering.values() if not stream.delivered)

    def _all(self) -> Iterator[TokenStream]:
        yield from self._live.values()
        yield from self._lingering.values()


def _can_be_sent(entry: TokenEntry) -> bool:
    try:
        _encode(entry)
    except Exception:  # of any kind: msgspec asks the objects themselves
        return False
    return True


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST) if isfinite(logprob) else LOWEST
