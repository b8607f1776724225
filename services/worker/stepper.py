"""The worker's outbox: every turn's tokens, kept until they arrived, drained into one frame per shard and tick.

A turn's tokens are one list; what was sent is an index into it. That list is at once the buffer that coalesces when a
shard grants no credit, and the memory from which any part is sent again. It is bounded by the turn's own `max_tokens`.
Finished turns linger for a while, so that another shard can take over from one that died.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator

from msgspec import Raw

from schemas.control import Replay
from schemas.frames import ABSENT, TokenEntry, TokenFinish, TokenFrame
from services.worker.engine import Delta

MAX_FRAME_TOKENS = 32_768
"""Tokens in one frame at most: some 250 KB of JSON."""

Logprobs = list[list[tuple[int, float]]]


class TokenStream:
    """One turn's output tokens and how far its shard has them."""

    __slots__ = (
        "_cached_sent",
        "attempt",
        "cached",
        "context",
        "delivered",
        "ended_at",
        "finish",
        "finish_seq",
        "frontend",
        "ids",
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
        self.parser = parser
        self.frontend = frontend
        self.context = context
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
        if delta.logprobs is not None:
            if self.logprobs is None:
                # Tokens of an earlier attempt, or steps without any, keep their places.
                self.logprobs = [[] for _ in range(len(self.ids) - len(delta.ids))]
            self.logprobs += delta.logprobs
        if delta.cached is not None:
            self.cached = delta.cached
        if delta.finish is not None:
            self.finish = TokenFinish(delta.finish, delta.stop_id)

    @property
    def pending(self) -> bool:
        """Whether there is something to send."""
        return self.sent < len(self.ids) or (self.finish is not None and self.finish_seq is None)

    def take(self, seq: int, budget: int) -> TokenEntry:
        """Everything not sent yet, `budget` tokens at most; the frame that takes it has number `seq`."""
        at = max(self.sent, 0)
        end = min(len(self.ids), at + budget)
        whole = end == len(self.ids)
        self.sent = end
        cached = self.cached if at == 0 or self.cached != self._cached_sent else None
        self._cached_sent = self.cached
        if whole and self.finish is not None:
            self.finish_seq = seq
        return TokenEntry(
            self.turn,
            self.attempt,
            at,
            self.ids[at:end],
            self.context if at == 0 else ABSENT,
            cached,
            self.logprobs[at:end] if self.logprobs is not None else None,
            self.finish if whole else None,
        )

    def rewind(self, offset: int) -> None:
        """Send again from `offset` on; never moves forward."""
        self.sent = -1 if offset == 0 else min(self.sent, offset)
        self._cached_sent = None
        self.finish_seq = None
        self.delivered = False


class Outbox:
    """The token streams of one worker."""

    def __init__(self, worker: str, *, linger_s: float, max_lingering: int = 4096) -> None:
        self._worker = worker
        self._linger_s = linger_s
        self._max_lingering = max_lingering
        self._live: dict[str, TokenStream] = {}
        self._lingering: OrderedDict[str, TokenStream] = OrderedDict()
        self._dirty: dict[str, dict[str, TokenStream]] = {}
        self._ends: dict[str, deque[tuple[int, TokenStream]]] = {}

    def open(self, stream: TokenStream) -> None:
        """A turn begins. A former attempt of the same turn is forgotten."""
        self._lingering.pop(stream.turn, None)
        former = self._live.get(stream.turn)
        if former is not None:
            self._dirty.get(former.parser, {}).pop(stream.turn, None)
        self._live[stream.turn] = stream

    def mark(self, stream: TokenStream) -> None:
        """The stream has something to send."""
        self._dirty.setdefault(stream.parser, {})[stream.turn] = stream

    def ended(self, stream: TokenStream, now: float) -> None:
        """Decoding is over; what is unsent still goes out, and the stream lingers."""
        stream.ended_at = now
        if self._live.get(stream.turn) is stream:
            del self._live[stream.turn]
            self._lingering[stream.turn] = stream
        while self._lingering:
            oldest = next(iter(self._lingering.values()))
            if len(self._lingering) <= self._max_lingering and now - oldest.ended_at < self._linger_s:
                break
            del self._lingering[oldest.turn]

    def fill(self, parser: str, seq: int) -> TokenFrame | None:
        """The next frame for a shard: everything of all its streams, up to the frame limit."""
        dirty = self._dirty.get(parser)
        if not dirty:
            return None
        entries: list[TokenEntry] = []
        budget = MAX_FRAME_TOKENS
        for turn, stream in list(dirty.items()):
            if not stream.pending:  # marked twice in one tick
                del dirty[turn]
                continue
            entry = stream.take(seq, budget)
            entries.append(entry)
            budget -= len(entry.ids)
            if not stream.pending:
                del dirty[turn]
            if entry.finish is not None:
                self._ends.setdefault(parser, deque()).append((seq, stream))
            if budget <= 0:
                break
        return TokenFrame(self._worker, seq, entries) if entries else None

    def credited(self, parser: str, seq: int) -> None:
        """A shard has everything up to frame `seq`: streams whose end was in it are delivered."""
        ends = self._ends.get(parser)
        while ends and ends[0][0] <= seq:
            number, stream = ends.popleft()
            if stream.finish_seq == number:  # else it was rewound since, and its end goes out again
                stream.delivered = True

    def replay(self, request: Replay) -> None:
        """Rewinds what the shard asks for, and with `all` every other stream of which it may not have the end."""
        named = {standing.turn: standing for standing in request.streams}
        for stream in list(self._all()):
            if stream.parser != request.receiver:
                continue
            standing = named.get(stream.turn)
            if standing is not None:
                stream.rewind(standing.offset if standing.attempt == stream.attempt else 0)
            elif request.all and stream.sent >= 0 and not stream.delivered:
                stream.rewind(0)
            else:
                continue
            self.mark(stream)

    def move(self, gone: str, to: str) -> int:
        """Sends every stream of a shard that is gone to another one, from its start. Returns how many."""
        self._dirty.pop(gone, None)
        self._ends.pop(gone, None)
        moved = [stream for stream in self._all() if stream.parser == gone]
        for stream in moved:
            stream.parser = to
            stream.rewind(0)
            self.mark(stream)
        return len(moved)

    def get(self, turn: str) -> TokenStream | None:
        """The live stream of a turn."""
        return self._live.get(turn)

    def live(self) -> list[TokenStream]:
        """All streams that still decode."""
        return list(self._live.values())

    @property
    def delivered(self) -> bool:
        """Every turn that ended here is with its shard."""
        return all(stream.delivered for stream in self._lingering.values())

    def _all(self) -> Iterator[TokenStream]:
        yield from self._live.values()
        yield from self._lingering.values()
