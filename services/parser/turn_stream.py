"""One attempt at a turn as a stream: its token ids, the log of its events, and how far its frontend
has them. Pure."""

from array import array
from dataclasses import dataclass, field
from sys import intern

from schemas.control import StreamPosition
from schemas.events import Prepared
from schemas.requests import ParseContext
from services.runtime.streams.cursor import Cursor
from services.runtime.streams.turn_log import TurnLog


@dataclass(slots=True, eq=False, repr=False)
class TurnStream:
    """The tokens and events of one attempt. On the fast path, `log` and `sent` are brought up to
    date when the turn leaves it."""

    turn: str
    attempt: int
    context: ParseContext
    worker: str
    expected_cached: int = 0
    """Prompt tokens that the worker expects in its KV cache."""
    cached: int | None = None
    """Prompt tokens that the engine had in its KV cache; None: not known yet."""
    frontend: str = field(init=False)
    ids: "array[int]" = field(init=False)
    log: TurnLog = field(default_factory=TurnLog)
    sent: Cursor = field(default_factory=Cursor)
    """Position up to which the events were read."""
    announced: bool = False
    """Whether `Prepared` was sent to the frontend."""
    end_seq: int | None = None
    """The frame that carried the last event."""

    def __post_init__(self) -> None:
        # One object for all turns of a frontend, which is probably in the CPU's caches when names
        # are compared.
        self.frontend = intern(self.context.frontend)
        self.ids = array("I")

    def __repr__(self) -> str:
        state = "streaming" if self.log.terminal is None else type(self.log.terminal).__name__
        block, length = self.sent.text_position
        return (
            f"turn {self.turn} {state}, attempt {self.attempt}, worker {self.worker}, "
            f"{len(self.ids)} tokens, sent to block {block} + {length}"
        )

    @property
    def position(self) -> StreamPosition:
        """Up to where the tokens have arrived."""
        return StreamPosition(self.turn, self.attempt, len(self.ids))

    def announce(self, parser: str) -> Prepared:
        """Returns the event that precedes all others. `parser`: the id of this process."""
        self.announced = True
        context = self.context
        cached = self.expected_cached if self.cached is None else self.cached
        opening = ""
        if context.prompt_ids and context.ledger is not None:
            opening = context.ledger.opening
        return Prepared(
            prompt_tokens=context.prompt_tokens,
            max_tokens=context.max_tokens,
            worker=self.worker,
            parser=parser,
            prompt_ids=context.prompt_ids,
            cached=min(cached, context.prompt_tokens),
            comparison=context.comparison,
            opening=opening,
            images=context.images,
        )

    def rewind(self, position: StreamPosition) -> None:
        """Moves back to the frontend's position; never moves forward."""
        self.sent.rewind(position)
        self.end_seq = None
        self.announced = False
