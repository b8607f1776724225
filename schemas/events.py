"""The events of a turn, in order: the contract between parser and API renderers.

Blocks are numbered from 0 in the order in which they start; one block is open at a time. Every
event has its position (`block`, `offset` in characters), so that a receiver detects a gap or a
repeat from the event alone and any hop may be replayed. A turn ends with exactly one `Finish` or
`Failed`.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from schemas.conversation import TOOL_SEARCHES, HostedKind
from schemas.errors import ErrorInfo, ErrorKind

BlockKind: TypeAlias = Literal["reasoning", "text", "tool_use", "hosted"]
"""`hosted`: a call of a tool that the frontend runs. Made in the frontend; on the bus it is
`tool_use`."""
MAX_DISPATCH = 512 * 1024
"""Limit of characters of arguments in a `Dispatch`, which is not split and must fit into one
message of the bus."""


class FinishReason(StrEnum):
    """Why decoding ended. Whether the turn 'ended with tool calls' follows from its blocks and is
    not a reason."""

    STOP = "stop"
    """The model stopped by itself (end-of-sequence or stop token)."""
    LENGTH = "length"
    """`max_tokens` was reached."""
    CONTEXT = "context"
    """The context window is full."""
    STOP_STRING = "stop_string"
    """One of the client's stop strings was written."""
    CANCELLED = "cancelled"
    """The client left, or the server was stopped."""
    PAUSE = "pause"
    """The frontend ran tools for many rounds; the client sends the answer back to go on. Never on
    the bus."""
    ERROR = "error"
    """The engine failed during the turn."""


class BlockStart(Struct, frozen=True, omit_defaults=True, tag="block_start", tag_field="type"):
    """A block opens. A tool_use block opens only when its name is complete."""

    block: int
    kind: BlockKind
    name: str | None = None
    call_id: str | None = None


class TopLogprob(Struct, frozen=True):
    """A token that the model could have written."""

    token: str
    logprob: float
    data: bytes = b""
    """The token's bytes, because `token` cannot show those of half a character."""


class TokenLogprob(Struct, frozen=True, omit_defaults=True):
    """A token of a block and its log probability (natural logarithm)."""

    token: str
    logprob: float
    at: int
    """Characters of the block before the token's text."""
    data: bytes = b""
    top: list[TopLogprob] = []
    """The likeliest tokens at this place, likeliest first; as many as the request asked for."""
    index: int = 0
    """The token's place in the turn's output."""


class Delta(Struct, frozen=True, omit_defaults=True, gc=False, tag="delta", tag_field="type"):
    """A piece of the open block. For tool_use the pieces add up to the JSON text of the
    arguments."""

    block: int
    offset: int
    """Characters of this block that came before."""
    text: str
    logprobs: list[TokenLogprob] | None = None
    """Log probabilities of the tokens of this text, if the request asked for them."""


UNKNOWN_WEIGHTS = -1
"""The version of the weights that decoded tokens of an earlier attempt, which another worker has
continued."""


class WeightsSpan(NamedTuple):
    """Output tokens from `at` on were decoded by this version of the weights, up to the next
    span."""

    at: int
    version: int
    """0: the weights that the engine has started with; `UNKNOWN_WEIGHTS`."""


def spans_between(spans: Iterable[WeightsSpan], start: int, end: int) -> list[WeightsSpan]:
    """The spans of the tokens from `start` to `end`; the first one begins at `start`. Tokens
    before the first span are of version 0."""
    between = [WeightsSpan(start, 0)]
    for span in spans:
        if span.at >= end:
            break
        if span.at <= start:
            between = [WeightsSpan(start, span.version)]
        else:
            between.append(span)
    return between


def corrected(spans: list[WeightsSpan], by: list[WeightsSpan]) -> list[WeightsSpan]:
    """The spans, with those of `by` from its first one's place on."""
    if not by:
        return spans
    kept = [span for span in spans if span.at < by[0].at]
    goes_on = bool(kept) and kept[-1].version == by[0].version
    return [*kept, *by[goes_on:]]


class OutputTokens(Struct, frozen=True, omit_defaults=True, tag="tokens", tag_field="type"):
    """The next output tokens, if the request asked for ids: all that were decoded, in order. They
    precede the events that the parser made from them, unless a message was lost. They add up to
    `Usage.kept`: the end token is the last one, if the engine reported one; tokens after a cut
    (stop string, only allowed call) are left out."""

    at: int
    """Output tokens of this turn that came before."""
    ids: list[int]
    logprobs: list[TokenLogprob | None] | None = None
    """One for each id, if the request asked for them; `at` of each is 0. None: the engine reported
    none, as for tokens of an earlier attempt."""
    weights: list[WeightsSpan] = []
    """The versions that begin among these ids; before the first one, that of the ids before. On the
    bus the first one may be that of the ids before, again; empty: all are of version 0."""


class Dispatch(Struct, frozen=True, tag="dispatch", tag_field="type"):
    """A complete tool call, which may run now. Sent once, right before its `block_stop`.

    It precedes the stop because a receiver's position names the open block: a receiver that lost
    either event requests the rest of this block and gets both again. After the stop, its position
    would already be in the next block.

    A call of more than `MAX_DISPATCH` characters has no `Dispatch`; `complete` of its `block_stop`
    marks it as whole.
    """

    block: int
    call_id: str
    name: str
    arguments: str
    """The JSON text, as the deltas add up to it."""


class BlockStop(Struct, frozen=True, omit_defaults=True, tag="block_stop", tag_field="type"):
    """A block ends. For tool_use, `complete` is whether the call is whole; if so, its `Dispatch`
    came before."""

    block: int
    complete: bool = True
    length: int = 0
    """Characters in the block: a receiver that has fewer missed some."""
    seal: str | None = None
    """For reasoning: an opaque, authenticated copy of the text; never empty on the way to a
    client."""
    tokens: int = 0
    """For reasoning, if the request asked for it: its tokens, with those of its end."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Token counts. `prompt` is the whole prompt, `cached` the part of it that the engine did not
    compute again."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    """Every token that was decoded, the end token included."""
    reasoning: int = 0
    """The part of `output` that was decoded inside reasoning."""
    discarded: int = 0
    """The part of `output` that was decoded in vain (`BrokenCall`)."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
            self.discarded + other.discarded,
        )

    @property
    def kept(self) -> int:
        """The part of `output` that the turn consists of."""
        return self.output - self.discarded


class PromptComparison(Struct, frozen=True, omit_defaults=True):
    """How a prompt departs from an earlier one (`Client.compare`)."""

    earlier: int = 0
    """Tokens of the earlier prompt; 0: it is unknown."""
    missed: int = 0
    """Tokens of the earlier prompt after the first difference; 0: this prompt begins with it."""
    changed: list[str] = []
    """Parts of the request that differ, if tokens are missed: `model`, or names of
    `prompt_diff.prompts.PARTS`. Empty: the request is not the cause, for example where the chat
    template drops earlier reasoning."""


class PromptImage(Struct, frozen=True):
    """An image in a prompt. Its data is in the bucket `tw_media`."""

    hash: str
    """`Media.hash`."""
    at: int
    """Index of its first token in the prompt."""
    tokens: int
    """Its tokens: what the model's processor puts in the place of one placeholder."""


class Prepared(Struct, frozen=True, omit_defaults=True, tag="prepared", tag_field="type"):
    """The prompt is ready and a worker has it: the turn will stream. The first event of every
    attempt, and of every shard that takes one over."""

    prompt_tokens: int
    max_tokens: int
    """The effective limit of output tokens; the context window may have lowered it."""
    worker: str = ""
    parser: str = ""
    prompt_ids: bytes = b""
    """The prompt (`token_ids.pack_ids`), if the request asked for ids."""
    cached: int = 0
    """Prompt tokens that the worker expects in its KV cache. `Finish.usage` has the exact
    number."""
    comparison: PromptComparison | None = None
    """None: the request compares with no earlier prompt, or the comparison is not possible."""
    opening: str = ""
    """With `prompt_ids`: the turn opening at the prompt's end, as in `LedgerContext`."""
    images: list[PromptImage] = []
    """With `prompt_ids`: the images in the prompt, in order."""
    model: str = ""
    """The model of a turn that moved to another one while it waited. Never on the bus."""


class Finish(Struct, frozen=True, omit_defaults=True, tag="finish", tag_field="type"):
    """The turn ended. `blocks`: how many it had; a receiver that has fewer missed some."""

    reason: FinishReason
    blocks: int
    usage: Usage
    stop_string: str | None = None
    tokens: int = 0
    """How many ids came in `OutputTokens`; a receiver that has fewer missed some."""
    stop_id: int | None = None
    """If ids came: the end token, which is then the last of them."""
    weights: list[WeightsSpan] = []
    """Replace the spans of the `OutputTokens`, from the first one's place on. Empty: those are
    final."""
    experts: str = ""
    """The worker's file with the experts to which the tokens were routed; "": there is none."""
    hidden_usage: Usage = Usage()
    """The prompts of turns that the client does not see, beyond `usage`. Never on the bus."""


class Failed(Struct, frozen=True, tag="failed", tag_field="type"):
    """The turn ended with an error."""

    error: ErrorInfo


class WebSource(Struct, frozen=True, omit_defaults=True):
    """A page that a search found or a fetch read."""

    url: str
    title: str = ""
    text: str = ""
    """The text that the model reads."""
    age: str | None = None


class HostedResult(Struct, frozen=True, omit_defaults=True):
    """The result of one call of a tool that the frontend ran."""

    call_id: str
    name: str
    kind: HostedKind
    arguments: str
    """The call's arguments, as the model wrote them."""
    sources: list[WebSource] = []
    tools: list[str] = []
    """The names of the tools that a search found, best first, as the model sees them."""
    error: str | None = None
    """One of the error codes of Anthropic's tools."""
    explanation: str | None = None
    """The error in words, for the client; the model reads the code."""

    @property
    def is_of_tool_search(self) -> bool:
        """Whether it is the result of a search of deferred tools."""
        return self.kind in TOOL_SEARCHES


class HostedResults(Struct, frozen=True, tag="hosted_results", tag_field="type"):
    """Tools that the frontend ran between two turns of the model. Never on the bus."""

    results: list[HostedResult]
    turn: str
    """Id of the model's turn that follows."""


BrokenCallCause: TypeAlias = Literal["unfinished", "unreadable", "unknown_tool", "schema"]
"""Why a call cannot be run. unfinished: the model ended its turn inside the call; unreadable: the
parser gave it up, as a call or as text; unknown_tool: no tool that may be called has its name;
schema: a required member is missing, or a value has the wrong type."""


class BrokenCall(Struct, frozen=True, omit_defaults=True):
    """A call that was not sent: its turn is decoded again from the call's opener."""

    cause: BrokenCallCause
    tokens: int
    """Output tokens from the opener on, with the end token: they were decoded in vain."""
    cached: int = 0
    """Prompt tokens that the engine had in its KV cache for them, as in `Usage`."""


class Interrupted(Struct, frozen=True, omit_defaults=True, tag="interrupted", tag_field="type"):
    """The worker died during the turn, or wrote a broken call. This does not end it: the frontend
    requests the turn again, from these tokens on."""

    worker: str
    token_ids: bytes
    """All output tokens that were decoded, packed (`token_ids.pack_ids`). Of a broken call: those
    before its opener."""
    error: ErrorInfo
    """The error for the client if no other worker can continue."""
    block: int = 0
    """The block that is open after the events of these tokens, or else the next one."""
    offset: int = 0
    """Characters in `block`. A receiver that has shown more cannot continue from here."""
    broken_call: BrokenCall | None = None
    """None: the worker died."""
    rest: "list[LoggedEvent]" = []
    """The events for the client if a broken call cannot be decoded again: those from `block` and
    `offset` on, with the call as it is and the end of the turn. Empty: they are too long."""

    @property
    def token_count(self) -> int:
        """The number of ids in `token_ids`, which has four bytes for each."""
        return len(self.token_ids) // 4


BlockEvent: TypeAlias = BlockStart | Delta | BlockStop
EventInBlock: TypeAlias = BlockEvent | Dispatch
LastEvent: TypeAlias = Finish | Failed
LoggedEvent: TypeAlias = OutputTokens | EventInBlock | LastEvent | Interrupted
TurnEvent: TypeAlias = Prepared | HostedResults | LoggedEvent


def failure_of(event: TurnEvent) -> ErrorInfo | None:
    """The error with which this event ends a turn; None for every other event."""
    if isinstance(event, Failed):
        return event.error
    if isinstance(event, Finish):
        if event.reason is FinishReason.CANCELLED:
            return ErrorInfo(
                ErrorKind.UNAVAILABLE, "The server stopped this turn. Please try again."
            )
        if event.reason is FinishReason.ERROR:
            return ErrorInfo(ErrorKind.ENGINE, "The engine failed in the middle of this turn.")
    return None


def blocks_of(events: Iterable[TurnEvent]) -> Iterator[tuple[BlockStart, str, BlockStop | None]]:
    """Yields the blocks of a turn in order: start, text and end; None if the block is still
    open."""
    start: BlockStart | None = None
    texts: list[str] = []
    for event in events:
        if isinstance(event, BlockStart):
            start = event
            texts = []
        elif isinstance(event, Delta):
            texts.append(event.text)
        elif isinstance(event, BlockStop) and start is not None:
            yield start, "".join(texts), event
            start = None
    if start is not None:
        yield start, "".join(texts), None
