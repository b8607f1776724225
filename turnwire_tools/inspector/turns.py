"""The types of the turns that the inspector keeps, and of their parts that its page shows. Pure."""

from array import array
from typing import Literal, TypeAlias

from msgspec import Struct, field

from schemas import events, requests
from schemas.events import BlockKind
from services.prompt_diff.prompts import Difference
from services.runtime.streams.cursor import Cursor
from services.tokenization.segments import TokenIds
from turnwire_tools.inspector.conversation import MAX_TEXT, NOTHING_ADDED, Addition

State: TypeAlias = Literal["received", "placed", "writing", "finished", "failed", "cancelled"]
"""`placed`: a worker was chosen and has sent no token; the last three are ends."""
MarkKind: TypeAlias = Literal[
    "received",
    "attempt",
    "held",
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
received: the frontend's first request.  attempt: another one: the frontend tries again, on another
worker.
held: from here until `placed`, it waited until another turn had computed the beginning of its
prompt.
placed: the prompt is ready and goes to a worker; a second one in an attempt: the worker before
refused.
opened: a parser has the worker's stream.  takeover: another parser has it.  first: the first output
arrived.
block: a block is complete.  dispatch: a call is complete and was sent to the client.
replay: a receiver requested frames again.  interrupted: the worker died.  cancel: the turn was
cancelled.
"""
ABANDONED: tuple[State, ...] = ("failed", "cancelled")
ENDED: tuple[State, ...] = ("finished", *ABANDONED)
MAX_MARKS = 400


class TimeMark(Struct, frozen=True):
    """A point on a turn's time line."""

    ms: float
    kind: MarkKind
    text: str = ""
    trouble: bool = False
    """Something was done again, or lost."""


class InspectedBlock(Struct):
    """A block of the answer."""

    kind: BlockKind
    start_ms: float
    name: str = ""
    call_id: str = ""
    end_ms: float | None = None
    dispatch_ms: float | None = None
    complete: bool = True
    length: int = 0
    """Characters that came; `text` has at most `MAX_TEXT`."""
    text: str = ""

    def add(self, text: str) -> int:
        """Adds text. Returns how many of its characters are kept."""
        self.length += len(text)
        if len(self.text) >= MAX_TEXT:
            return 0
        self.text += text
        return len(text)


class Departure(Difference, frozen=True, kw_only=True):
    """How a prompt departs from the session's previous one with its answer, and why."""

    previous: str
    """The previous turn."""
    extends: bool
    """The prompt begins with all previous tokens."""
    cause: str
    """`Change.kind`, or `none`, `template`, `tokenization`, `unknown`."""
    reason: str
    """The cause in words."""
    was: str = ""
    """The text of the previous tokens around the place; "" without a tokenizer."""
    now: str = ""
    """Text of the prompt's tokens around the place."""


class Row(Struct, kw_only=True):
    """A turn in the page's list."""

    id: str
    session: str
    """The first turn of its session."""
    number: int = 1
    """1, 2, 3 … in its session."""
    time: float
    """Unix time of the request in seconds. All other times are milliseconds after it."""
    model: str
    client: str
    """The first word of the user agent."""
    kind: str = "main"
    """`Client.kind`."""
    parent: str = ""
    """The session of the agent that started this one; "": none is known."""
    key: str = ""
    """The name of the API key."""
    label: str = ""
    """The first words of the question; of a turn without one, what it received."""
    asks: bool = False
    """It has a question."""
    title: str = ""
    """The client requested a title for the session `parent`: this one."""
    state: State = "received"
    prompt: int = 0
    """Tokens, as `cached` and `output`."""
    cached: int | None = None
    """What the engine had of the prompt; before the end, what the worker reported or expects."""
    output: int = 0
    ttft_ms: float | None = None
    """When the parser sent the first of the answer."""
    ms: float | None = None
    """The end."""
    calls: int = 0
    trouble: bool = False
    """Something was done again, or lost."""
    again: int = 0
    """Prompt tokens that were computed again, though a previous turn had them."""


class TurnDetails(Row):
    """What the page shows of one turn."""

    worker: str = ""
    parser: str = ""
    attempt: int = 1
    finish: str = ""
    """Why it ended: the finish reason, the error, or the reason of the cancellation."""
    incomplete: bool = False
    """Events were lost on the way to the inspector."""
    reused: int | None = None
    """Prompt tokens that came from the ledger; None: there is no ledger, or it is unknown."""
    recall: str = ""
    tools: int = 0
    """Prompt tokens that define tools at its start, about."""
    held_for: str = ""
    """The turn that had to compute the beginning of the prompt first; "": none."""
    held_s: float = 0.0
    expected: int = 0
    """Prompt tokens that the worker expected in the engine's cache."""
    max_tokens: int = 0
    reasoning: int = 0
    """Output tokens."""
    marks: list[TimeMark] = []
    blocks: list[InspectedBlock] = []
    difference: Departure | None = None


class InspectedTurn(TurnDetails):
    """One turn, with the state of following it."""

    previous: str = ""
    """The previous turn of its session."""
    history: int = 0
    """The key of the history in its request (`SessionFinder`)."""
    placed_attempt: int = 0
    """The newest attempt that was sent to a worker."""
    placed_ms: float | None = None
    decoded_ms: float | None = None
    """When the worker sent the first token."""
    arrived: int = 0
    """Output tokens in the parser's events, all of which the frontend has."""
    addition: Addition = NOTHING_ADDED
    """What the request adds to its session."""
    opened_by: tuple[int, str] = (0, "")
    """Attempt and parser of the newest stream."""
    ids: TokenIds = field(default_factory=lambda: array("I"))
    """The output, without the end token."""
    cursor: Cursor = field(default_factory=Cursor)

    def __repr__(self) -> str:
        place = f"attempt {self.attempt}, worker {self.worker or '-'}"
        return f"turn {self.id} {self.state}, {place}, {len(self.ids)} tokens"

    @property
    def characters(self) -> int:
        """Characters that are kept of its texts, without those of the head."""
        return self.addition.characters + sum(len(block.text) for block in self.blocks)

    @property
    def characters_per_token(self) -> float:
        """An average of the session so far; 0: unknown."""
        return self.addition.total / self.prompt if self.prompt else 0.0

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED

    def ms_at(self, time: float) -> float:
        """Milliseconds from the request to a Unix time; 0 where the clock of another machine is
        late."""
        return max(0.0, round(1000.0 * (time - self.time), 2))

    def mark(self, time: float, kind: MarkKind, text: str = "", *, trouble: bool = False) -> None:
        """Adds a point to the time line, as long as there is room."""
        self.trouble |= trouble
        if len(self.marks) < MAX_MARKS:
            self.marks.append(TimeMark(self.ms_at(time), kind, text, trouble))

    def try_again(self, request: requests.TurnRequest, now: float) -> None:
        """Takes the frontend's request for another attempt."""
        self.attempt = request.attempt
        if request.broken_call is not None:
            del self.ids[len(request.resume) // 4 :]
        if self.has_ended:
            self.state = "received"
            self.ms = None
            self.cursor.ended = False

        text = f"attempt {request.attempt}"
        if request.resume:
            text += f", continues after {len(request.resume) // 4} tokens"
        if request.avoid:
            text += f", avoids {', '.join(request.avoid)}"
        self.mark(now, "attempt", text, trouble=True)

    def place(self, request: requests.GenerateRequest, now: float, worker: str) -> None:
        """Takes the request to a worker."""
        self.attempt = request.attempt
        self.placed_attempt = request.attempt
        self.worker = worker
        self.parser = request.parser
        self.recall = request.recall
        self.reused = request.reused if request.recall else None
        if self.placed_ms is None:
            self.placed_ms = self.ms_at(now)
        if self.state == "received":
            self.state = "placed"

    def first_output(self, now: float) -> None:
        """The parser has sent a part of the answer."""
        if self.ttft_ms is None:
            self.ttft_ms = self.ms_at(now)
            self.mark(now, "first")
        if not self.has_ended:
            self.state = "writing"

    def opened(self, event: events.Prepared, attempt: int, now: float) -> None:
        """A parser has the stream. It sends this again with a replay."""
        if attempt < self.attempt or self.opened_by == (attempt, event.parser):
            return
        self.opened_by = (attempt, event.parser)
        if self.parser and event.parser != self.parser:
            text = f"{event.parser} parses in place of {self.parser}"
            self.mark(now, "takeover", text, trouble=True)
        else:
            self.mark(now, "opened", f"{event.parser} has the stream of {event.worker}")

        self.prompt = event.prompt_tokens
        self.max_tokens = event.max_tokens
        self.worker = event.worker or self.worker
        self.parser = event.parser or self.parser
        if event.cached and self.cached is None:
            self.cached = event.cached

    def abandon(self, state: State, finish: str, now: float) -> None:
        """The turn ends before its last token. Its output is what arrived, as in the frontend's
        log, metrics and usage."""
        self.state = state
        self.finish = finish
        self.ms = self.ms_at(now)
        self.output = self.arrived
        del self.ids[self.arrived :]

    def end_block(self, event: events.BlockStop, now: float) -> None:
        """The newest block is complete, or cut off."""
        block = self.blocks[-1]
        block.end_ms = self.ms_at(now)
        block.complete = event.complete
        text = f"{block.name or block.kind}, {block.length} characters"
        if not event.complete:
            text += ", cut off"
        self.mark(now, "block", text)
