"""What a turn says, as one ordered stream of events: the contract between parser and API renderers.

Blocks are numbered from 0 in the order in which they start; one block is open at a time. Every event says where it
stands (`block`, `offset` in characters), so that a receiver can tell a gap or a repeat from the event alone and any hop
may be replayed. A turn ends with exactly one `Finish` or `Failed`.
"""

from enum import StrEnum
from typing import Literal, TypeAlias

from msgspec import Struct

from schemas.errors import ErrorInfo

BlockKind: TypeAlias = Literal["reasoning", "text", "tool_use"]


class FinishReason(StrEnum):
    """Why decoding ended. Whether the turn 'ended with tool calls' follows from its blocks and is not a reason."""

    STOP = "stop"
    """The model stopped by itself (end-of-sequence or stop token)."""
    LENGTH = "length"
    """`max_tokens` was reached."""
    CONTEXT = "context"
    """The context window is full."""
    STOP_STRING = "stop_string"
    """One of the client's stop strings was written."""
    CANCELLED = "cancelled"
    """The client left, or the server was told to stop."""
    ERROR = "error"
    """The engine failed in mid-turn."""


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
    """The token's own bytes: `token` cannot show those of half a character."""


class TokenLogprob(Struct, frozen=True, omit_defaults=True):
    """A token of a block and its log probability (natural logarithm)."""

    token: str
    logprob: float
    at: int
    """Characters of the block before the token's text."""
    data: bytes = b""
    top: list[TopLogprob] = []
    """The likeliest tokens at this place, likeliest first; as many as the request asked for."""


class Delta(Struct, frozen=True, omit_defaults=True, tag="delta", tag_field="type"):
    """A piece of the open block. For tool_use the pieces add up to the JSON text of the arguments."""

    block: int
    offset: int
    """Characters of this block that came before."""
    text: str
    logprobs: list[TokenLogprob] | None = None
    """Of the tokens that this text came from, where the request asked for them."""


class BlockStop(Struct, frozen=True, omit_defaults=True, tag="block_stop", tag_field="type"):
    """A block ends. For tool_use, `complete` true is the dispatch: the call is whole and may run now."""

    block: int
    complete: bool = True
    length: int = 0
    """Characters in the block: a receiver that has fewer missed some."""
    seal: str | None = None
    """For reasoning: an opaque, authenticated copy of the text; never empty on the way to a client."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Token counts. `prompt` is the whole prompt, `cached` the part of it that the engine did not compute again."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    """Every token that was decoded, the end token included."""
    reasoning: int = 0
    """The part of `output` that was decoded inside reasoning."""


class Prepared(Struct, frozen=True, omit_defaults=True, tag="prepared", tag_field="type"):
    """The prompt is ready and a worker has it: the turn will stream. The first event of every attempt, and of every
    shard that takes one over."""

    prompt_tokens: int
    max_tokens: int
    """The limit of output tokens that holds, after the context window had its say."""
    worker: str = ""
    parser: str = ""


class Finish(Struct, frozen=True, omit_defaults=True, tag="finish", tag_field="type"):
    """The turn ended. `blocks`: how many it had; a receiver that has fewer missed some."""

    reason: FinishReason
    blocks: int
    usage: Usage
    stop_string: str | None = None


class Failed(Struct, frozen=True, tag="failed", tag_field="type"):
    """The turn ended with an error."""

    error: ErrorInfo


class Interrupted(Struct, frozen=True, omit_defaults=True, tag="interrupted", tag_field="type"):
    """The worker died in mid-turn. Not an end: the frontend asks for the turn again, from these tokens on."""

    worker: str
    token_ids: bytes
    """All output tokens that were decoded, packed (`frames.pack_ids`)."""
    error: ErrorInfo
    """What the client is told if no other worker can go on."""
    block: int = 0
    """Where the events of these tokens end: the block that is open or comes next …"""
    offset: int = 0
    """… and its characters. Whoever has shown more cannot go on from here."""


BlockEvent: TypeAlias = BlockStart | Delta | BlockStop
TurnEvent: TypeAlias = Prepared | BlockStart | Delta | BlockStop | Finish | Failed | Interrupted
