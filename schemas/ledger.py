"""Ledger entries: the tokens of turns that have ended, for the prompts that follow
(docs/ledger.md)."""

from msgspec import Struct, field


class ParentTurn(Struct, frozen=True, omit_defaults=True):
    """The last turn with its original tokens in a prompt. The prompt's ids are those of this turn's
    prompt, its own, and those of the text after them."""

    mac: bytes
    end: int
    """End of the text that the turn stands for."""
    tokens: int = 0
    """The number of its tokens in the prompt; 0: all."""
    joint: str = ""
    """Text between its tokens and the text after them: the part of a token in which a turn was cut
    off."""


class PreviousTurn(Struct, frozen=True):
    """The last turn that a prompt restored, with or without its original tokens: it and its own
    `previous_turn` are the entries of one session."""

    mac: bytes
    key: bytes
    content: bytes
    """Digest of the content of this turn and of the turns before it: equal for sessions in which
    the model wrote the same tokens."""


class LedgerContext(Struct, frozen=True, omit_defaults=True):
    """The part of a turn's ledger entry that describes its prompt. The preprocessor makes it, the
    worker carries it unread in the parse context, and the parser puts it into the entry.

    It identifies the prompt's ids without holding them. Positions are characters of the prompt's
    text with its marks of data (`RenderedPrompt.marked_text`).
    """

    state: bytes
    """Chain hash of the model, template, tenant and conversation up to the turn."""
    head_chars: int
    """Length of the prompt head: the text before `opening`."""
    head_hash: bytes
    opening: str = ""
    """The turn opening at the prompt's end: the markers that open or skip the turn's reasoning, and
    a forced call's opening. The template may write them differently once the turn is history."""
    started: str = ""
    """The text with which the client started the turn, without white space."""
    session: bytes = b""
    """Digest of the client's session id; empty: the client sent none."""
    parent_turn: ParentTurn | None = None
    """None: the whole prompt was encoded."""
    previous_turn: PreviousTurn | None = None
    """None: the prompt restored no turn."""


class LedgerEntry(Struct, frozen=True, omit_defaults=True):
    """parser → preprocessors, and the value in the ledger's bucket: one turn that ended."""

    model: str
    key: bytes
    """Chain hash of the conversation up to and including the turn."""
    context: LedgerContext
    ids: bytes
    """The original tokens, as the engine decoded them, without the end token; packed
    (`token_ids.pack_ids`)."""
    closed: bool = True
    """The model ended the turn itself. Otherwise it was cut off, and lacks its closing."""
    tail: str = ""
    """The part that the client received of the token after `ids`, in which a stop string began."""
    in_reasoning: bool = False
    """The prompt ended inside an open reasoning block."""
    prefix: str = ""
    """Text at the prompt's end that belongs to the turn, as in its `ParseContext`."""
    calls_as_text: bool = False
    """A call's markup was text: the request allowed no calls."""
    beginning: bool = False
    """The turn went on after these tokens, or was broken off: a client may send the beginning of a
    turn back. Only ids and seals choose this entry."""
    id_digests: list[bytes] = field(default_factory=list, name="marks")
    """Digests of the ids and seals that only this turn's client received
    (`services/ledger/turns/evidence.py`)."""
    reasoning_digests: list[bytes] = field(default_factory=list, name="thoughts")
    """Digests of the turn's reasoning: of the whole, then of each block; empty: it has none."""
    mac: bytes = b""
    """Authenticates all other fields with the deployment's seal key; also the entry's identity."""
