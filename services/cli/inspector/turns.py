"""What the inspector keeps of a turn. Pure."""

from array import array
from typing import Literal, TypeAlias

from msgspec import Struct, field

from schemas.conversation import Conversation
from schemas.events import BlockKind
from services.runtime.streams.turn_log import Cursor
from services.tokenization.segments import TokenIds

State: TypeAlias = Literal["received", "placed", "writing", "finished", "failed", "cancelled"]
"""`placed`: a worker was chosen and has sent no token; the last three are ends."""
MarkKind: TypeAlias = Literal[
    "received",
    "attempt",
    "placed",
    "opened",
    "takeover",
    "first",
    "block",
    "dispatch",
    "replay",
    "interrupted",
    "cancel",
]
"""
received: the frontend's first request.  attempt: another one: the frontend tries again, on another worker.
placed: the prompt is ready and goes to a worker; a second one in an attempt: the worker before refused.
opened: a parser has the worker's stream.  takeover: another parser has it.  first: the first output arrived.
block: a block is complete.  dispatch: a call is complete and was sent to the client.
replay: a receiver requested frames again.  interrupted: the worker died.  cancel: the turn was cancelled.
"""
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")
MAX_MARKS = 400
MAX_TEXT = 256 * 1024
"""Characters of a block that are kept."""


class Mark(Struct, frozen=True):
    """A point on a turn's time line."""

    time: float
    """Unix time in seconds."""
    kind: MarkKind
    text: str = ""
    trouble: bool = False
    """Something was done again, or lost."""


class Block(Struct):
    """A block of the answer."""

    kind: BlockKind
    started: float
    name: str = ""
    call_id: str = ""
    stopped: float | None = None
    dispatched: float | None = None
    complete: bool = True
    length: int = 0
    """Characters that came; `pieces` has at most `MAX_TEXT`."""
    pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0]


class Change(Struct, frozen=True, omit_defaults=True):
    """One change of a conversation, as compared with the one before it."""

    kind: Literal["tools", "system", "settings", "message", "reasoning", "answer", "history"]
    where: str
    """What changed: `the tool Bash`, `system text 2`, `message 3 (user)`."""
    was: str = ""
    now: str = ""
    varies: str = ""
    """In instructions: what kind of text varies (`prompt_drift.Cause`)."""


class Difference(Struct, frozen=True, kw_only=True):
    """How a prompt departs from the session's previous one with its answer."""

    previous: str
    """The previous turn."""
    extends: bool
    """The prompt begins with all previous tokens."""
    at: int | None = None
    """The first token that differs; None: the previous tokens are no longer known."""
    again: int = 0
    """Previous tokens behind that place: what a worker computes again."""
    cause: str
    """`Change.kind`, or `none`, `template`, `tokenization`, `unknown`."""
    reason: str
    """The cause in words."""
    changes: list[Change] = []
    """All changes of the conversation, in the order of the prompt."""
    was: str = ""
    """The text of the previous tokens around the place, where a tokenizer is at hand …"""
    now: str = ""
    """… and of the prompt's."""


class InspectedTurn(Struct, eq=False):
    """One turn."""

    id: str
    received: float
    """Unix time of the request in seconds, as all times here."""
    model: str
    client: str = ""
    """The first word of the user agent."""
    session: str = ""
    """The first turn of its session."""
    number: int = 1
    """1, 2, 3 … in its session."""
    messages: int = 0
    state: State = "received"
    attempt: int = 1
    placed_attempt: int = 0
    """The newest attempt that was sent to a worker."""
    opened_by: tuple[int, str] = (0, "")
    """Attempt and parser of the newest stream."""
    worker: str = ""
    parser: str = ""
    placed: float | None = None
    opened: float | None = None
    first: float | None = None
    ended: float | None = None
    prompt_tokens: int = 0
    max_tokens: int = 0
    cached: int | None = None
    """Prompt tokens that the engine had; before the end, what the worker reported or expects."""
    reused: int | None = None
    """Prompt tokens that came from the ledger; None: there is no ledger, or it is unknown."""
    recall: str = ""
    output_tokens: int = 0
    reasoning_tokens: int = 0
    calls: int = 0
    finish: str = ""
    """Why it ended: the finish reason, the error, or the reason of the cancellation."""
    incomplete: bool = False
    """Events were lost on the way to the inspector."""
    blocks: list[Block] = []
    marks: list[Mark] = []
    previous: str = ""
    difference: Difference | None = None
    output: TokenIds = field(default_factory=lambda: array("I"))
    """Without the end token."""
    cursor: Cursor = field(default_factory=Cursor)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED

    def mark(self, time: float, kind: MarkKind, text: str = "", *, trouble: bool = False) -> None:
        """Adds a point to the time line, as long as there is room."""
        if len(self.marks) < MAX_MARKS:
            self.marks.append(Mark(time, kind, text, trouble))


class KnownPrompt(Struct, frozen=True, eq=False):
    """What comparing the next prompt needs. Kept for the turns that were used last."""

    conversation: Conversation
    ids: TokenIds
    """Empty: unknown."""
    context: bytes = b""
    """The parse context, as JSON."""

    @property
    def size(self) -> int:
        """Bytes, about: an id, and the text that it stands for."""
        return 12 * len(self.ids) + len(self.context) + 4096
