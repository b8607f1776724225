"""Frames on their way out: tokens from workers to parsers, events from parsers to frontends."""

from msgspec import Raw, Struct, field

from schemas.errors import ErrorInfo
from schemas.events import Failed, FinishReason, TurnEvent, WeightsSpan
from schemas.requests import ABSENT


class TokenFinish(Struct, frozen=True, omit_defaults=True):
    """How a token stream ended. The end token itself is `stop_id` and not among the ids."""

    reason: FinishReason
    stop_id: int | None = None
    error: ErrorInfo | None = None
    logprobs: list[tuple[int, float]] | None = None
    """Log probabilities of `stop_id`, as in `TokenEntry.logprobs`."""
    weights: list[WeightsSpan] = []
    """The spans from the first one's place to the end, where those in the entries were not sure
    before the end. Empty: they were."""
    experts: str = ""
    """The file in the worker's `routed_experts_dir` with the experts to which the tokens were
    routed; "": there is none."""


class TokenEntry(Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens of one turn, from output index `at` on. A stream's first entry has its parse context,
    and is sent as soon as the worker has the turn."""

    turn: str
    attempt: int
    at: int
    ids: list[int] = []
    context: Raw = ABSENT
    """A `ParseContext`; present whenever a stream is sent from its start."""
    cached: int | None = None
    """Prompt tokens that the engine had in its KV cache; in one entry or more, as soon as the
    number is known."""
    logprobs: list[list[tuple[int, float]]] | None = None
    """For each id of `ids`: (token id, log probability), the chosen one first."""
    finish: TokenFinish | None = None
    expected_cached: int = field(default=0, name="held")
    """In a stream's first entry: prompt tokens that the worker expects in its KV cache, until
    `cached` is known."""
    weights: list[WeightsSpan] = []
    """The versions of the weights that begin among `ids`. Empty where all tokens of a turn have
    version 0."""


class TokenFrame(Struct, frozen=True, omit_defaults=True):
    """worker → parser shard: the output of this tick, of all streams of the shard."""

    sender: str
    seq: int
    """1, 2, 3 … per sender and receiver; a gap is a lost frame. The upper bits are the link's
    generation."""
    entries: list[TokenEntry] = field(default_factory=list)
    time: float = 0.0
    """Unix time at which it was sent, for observers of the bus; 0: unknown."""


class EventEntry(Struct, frozen=True, omit_defaults=True, gc=False):
    """Events of one turn, in order."""

    turn: str
    attempt: int
    events: list[TurnEvent]
    tokens: int = 0
    """Output tokens of the turn up to here, for measurements."""


NO_STREAM = 0
"""The `seq` of a frame that is in no stream."""


class EventFrame(Struct, frozen=True, omit_defaults=True):
    """preprocessor or parser → frontend: one for each frontend and tick, with the new events of its
    turns."""

    sender: str
    seq: int
    """The frame's number, as in a `TokenFrame`; `NO_STREAM` for a `refusal` or a `probe`."""
    entries: list[EventEntry] = field(default_factory=list)
    time: float = 0.0
    """Unix time at which it was sent, for observers of the bus; 0: unknown."""

    @classmethod
    def refusal(cls, sender: str, turn: str, attempt: int, error: ErrorInfo) -> "EventFrame":
        """Makes the frame that fails an attempt which no parser has. The frontend replies to it."""
        return cls(sender, NO_STREAM, [EventEntry(turn, attempt, [Failed(error)])])

    @classmethod
    def probe(cls, sender: str) -> "EventFrame":
        """Makes a frame without content: NATS reports whether a frontend subscribes to it."""
        return cls(sender, NO_STREAM)
