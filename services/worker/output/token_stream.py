"""One turn's output tokens on their way to a parser shard, which may get any part of them again.

A stream is one list of tokens, bounded by the turn's `max_tokens`, with an index up to which they
were sent. So tokens coalesce while a shard grants no credit. Only a stream writes its own fields.
"""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias

from msgspec import Raw

from schemas.errors import STREAM_GONE, ErrorInfo, ErrorKind
from schemas.events import UNKNOWN_WEIGHTS, FinishReason, WeightsSpan
from schemas.frames import TokenEntry, TokenFinish
from services.worker.engine import LOWEST_LOGPROB, EngineDelta
from services.worker.output.decoded_weights import DecodedWeights

TOKEN_BYTES = 8
"""A token id and its comma in JSON."""
LOGPROB_BYTES = 32
NOTHING_SENT = -1
"""Value of `TokenStream.sent` before the parse context was sent."""
NO_FRAME = 2**64
"""Greater than the number of every frame."""

_BROKEN_OFF = (FinishReason.ERROR, FinishReason.CANCELLED)

StreamKey: TypeAlias = tuple[str, int]
"""Turn and attempt."""


GONE = TokenFinish(
    FinishReason.CANCELLED,
    error=ErrorInfo(ErrorKind.ENGINE, "the worker has lost the turn", code=STREAM_GONE),
)


class ShardQueue:
    """The streams that wait for one parser shard, and the last frame that it has."""

    __slots__ = ("credited", "gone", "parser", "waiting")

    def __init__(self, parser: str = "") -> None:
        self.parser = parser
        self.waiting: dict[TokenStream, None] = {}
        """The streams with something to send, in order."""
        self.gone: dict[StreamKey, TokenEntry] = {}
        """The entries that end streams which the shard lacks and which no longer exist."""
        self.credited = 0
        """The last frame up to which the shard has everything."""

    def end_gone(self, key: StreamKey, offset: int) -> None:
        """Lets the shard end a stream that no longer exists: no other process would."""
        self.gone[key] = TokenEntry(*key, offset, finish=GONE)

    def take_gone(self) -> list[TokenEntry]:
        """Takes the entries for streams that no longer exist."""
        entries = list(self.gone.values())
        self.gone.clear()
        return entries


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class TokenStream:
    """One turn's output tokens, and the position up to which its shard has them."""

    turn: str
    attempt: int
    frontend: str
    context: Raw
    """The parse context."""
    expected_cached: int = 0
    """Prompt tokens that are expected in the engine's KV cache."""
    ids: list[int]
    """Output tokens, those of an earlier attempt first: they are sent as if decoded here."""
    resumed: int = 0
    """How many of `ids` are an earlier attempt's."""
    logprobs: list[list[tuple[int, float]]] | None = None
    weights: DecodedWeights = field(default_factory=DecodedWeights)
    cached: int | None = None
    finish: TokenFinish | None = None
    queue: ShardQueue = field(default_factory=ShardQueue)
    """That of the stream's shard, from `Outbox.open` on."""
    sent: int = NOTHING_SENT
    """The number of output tokens that were sent."""
    cached_sent: int | None = None
    finish_seq: int = NO_FRAME
    """The frame that carried the end."""
    token_bytes: int = TOKEN_BYTES
    """The size of a token with its log probabilities, at most."""

    def __post_init__(self) -> None:
        self.resumed = len(self.ids)
        if self.resumed:
            earlier = WeightsSpan(0, UNKNOWN_WEIGHTS)
            self.weights = DecodedWeights((earlier, WeightsSpan(self.resumed, 0)))

    def __repr__(self) -> str:
        state = self.finish.reason if self.finish else "decoding"
        return (
            f"<turn {self.turn}, attempt {self.attempt}, {state}: "
            f"{len(self.ids)} tokens, {self.sent} sent to {self.parser or 'no shard'}>"
        )

    # -- what it is

    @property
    def key(self) -> StreamKey:
        """Turn and attempt."""
        return self.turn, self.attempt

    @property
    def parser(self) -> str:
        """The shard that gets the stream."""
        return self.queue.parser

    @property
    def output(self) -> list[int]:
        """The tokens that this attempt has decoded."""
        return self.ids[self.resumed :]

    @property
    def ended(self) -> bool:
        """Whether nothing is added any more."""
        return self.finish is not None

    @property
    def broken_off(self) -> bool:
        """Whether the turn has not ended by itself: it decodes, was cancelled or has failed."""
        return not self.finish or self.finish.reason in _BROKEN_OFF

    @property
    def pending(self) -> bool:
        """Whether there is something to send."""
        return self.sent < len(self.ids) or (self.ended and self.finish_seq == NO_FRAME)

    @property
    def delivered(self) -> bool:
        """Whether the shard has all of it, the end included."""
        return self.finish_seq <= self.queue.credited

    @property
    def least_bytes(self) -> int:
        """The approximate size of the smallest entry."""
        return _size(self.context) if self.sent < 0 else self.token_bytes

    # -- from the engine

    def add_tokens(self, ids: list[int]) -> bool:
        """Adds the tokens of an engine step that has nothing else, as nearly every step. Returns
        the result of `schedule`."""
        self.ids += ids
        if self.logprobs is not None:
            self._add_logprobs([])

        return self.schedule()

    def add(self, delta: EngineDelta) -> bool:
        """Adds an engine step's result. Returns the result of `schedule`."""
        if delta.weights is not None:
            self.weights.begin(len(self.ids), delta.weights)
        self.ids += delta.ids
        if delta.logprobs is not None or self.logprobs is not None:
            self._add_logprobs(delta.logprobs or [])
        if delta.cached is not None:
            self.cached = delta.cached
        if delta.finish is not None:
            stop = [(token, _finite(value)) for token, value in delta.stop_logprobs or ()]
            weights = self.weights.correct(len(self.ids), delta.spans or ())
            self.finish = TokenFinish(
                delta.finish,
                delta.stop_id,
                logprobs=stop or None,
                weights=weights,
                experts=delta.experts,
            )
        return self.schedule()

    def _add_logprobs(self, logprobs: list[list[tuple[int, float]]]) -> None:
        """Adds the log probabilities of the last tokens. Tokens without them (of an earlier
        attempt, of some steps) keep their places."""
        rows = [[(token, _finite(value)) for token, value in pairs] for pairs in logprobs]
        self.logprobs = self.logprobs or []
        without = len(self.ids) - len(rows) - len(self.logprobs)
        self.logprobs += [[] for _ in range(without)]
        self.logprobs += rows

        widest = max(map(len, rows), default=0)
        self.token_bytes = max(self.token_bytes, TOKEN_BYTES + LOGPROB_BYTES * widest)

    def schedule(self) -> bool:
        """Notes that the stream has something to send. Returns whether its shard must be woken: no
        other stream waits for it, or this one waits with its first tokens."""
        waiting = self.queue.waiting
        is_first = not waiting
        waiting[self] = None
        return is_first or self.sent <= self.resumed

    def end(self, finish: TokenFinish) -> None:
        """Ends the stream where it is."""
        self.finish = finish

    # -- to the shard

    def next_tokens(self, room: int) -> TokenEntry | None:
        """Returns the next entry of nearly every step, which has only tokens, and they fit; None
        where `next_entry` is needed."""
        at = self.sent
        ids = self.ids
        end = len(ids)
        if (
            at < 0
            or at == end
            or (end - at) * TOKEN_BYTES > room
            or self.finish is not None
            or self.logprobs is not None
            or self.cached != self.cached_sent
            or self.weights.last_at >= at
        ):
            return None
        self.sent = end
        return TokenEntry(self.turn, self.attempt, at, ids[at:])

    def next_entry(self, seq: int, room: int) -> tuple[TokenEntry, int]:
        """Takes what was not sent yet, `room` bytes or little more, for frame number `seq`.

        Returns the entry and the room that is left.
        """
        is_first = self.sent < 0
        at = max(self.sent, 0)
        if is_first:
            room -= _size(self.context)
        end = min(len(self.ids), at + max(room // self.token_bytes, 1))

        more: dict[str, Any] = {}
        if is_first:
            more |= {"context": self.context, "expected_cached": self.expected_cached}
        if is_first or self.cached != self.cached_sent:
            more["cached"] = self.cached
        if self.logprobs is not None:
            more["logprobs"] = self.logprobs[at:end]
        weights_end = end
        is_last = self.ended and end == len(self.ids)
        if is_last:
            more["finish"] = self.finish
            weights_end += 1  # the end token
        weights = self.weights.within(at, weights_end)
        if weights:
            more["weights"] = weights
        entry = TokenEntry(self.turn, self.attempt, at, self.ids[at:end], **more)

        self.sent = end
        self.cached_sent = self.cached
        if is_last:
            self.finish_seq = seq
        return entry, room - (end - at) * self.token_bytes

    def rewind(self, offset: int) -> None:
        """Sends again from `offset` on, from 0 with the parse context; never moves forward."""
        self.sent = NOTHING_SENT if offset <= 0 else min(self.sent, offset)
        self.cached_sent = None
        self.finish_seq = NO_FRAME

    def move(self, queue: ShardQueue) -> None:
        """Moves to another shard, which gets everything from the start."""
        self.queue = queue
        self.rewind(0)

    def break_off(self, at: int, error: ErrorInfo) -> None:
        """Ends the stream at `at` with an error: what follows cannot be sent."""
        del self.ids[at:]
        self.logprobs = None
        self.cached = None
        self.finish = TokenFinish(FinishReason.ERROR, error=error)
        self.rewind(at)


def _size(context: Raw) -> int:
    return memoryview(context).nbytes


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB) if isfinite(logprob) else LOWEST_LOGPROB
