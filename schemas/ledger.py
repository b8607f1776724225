"""Turns as their own tokens: what the parser says of a turn that has ended, so that the next prompt can hold it token
for token. `docs/ledger.md` tells how they are made, found and used.
"""

from msgspec import Struct


class LedgerSeat(Struct, frozen=True, omit_defaults=True):
    """Where a turn stands: all that its entry will say of the prompt. The preprocessor writes it, the worker carries it
    unread in the parse context, the parser hands it on.

    A prompt's ids are told without being sent: those of `parent`'s prompt, `parent`'s own ids, and the ids of the text
    from there on. Positions are characters of the prompt's text.
    """

    state: bytes
    """Chain hash of the model, template, tenant and conversation up to the turn."""
    front: int
    """Characters of the prompt before `lead`."""
    front_hash: bytes
    """Of these characters."""
    lead: str = ""
    """The prompt's end: the marks with which it opens, or leaves out, the turn's reasoning, and a forced call's
    opening. A template may write them in another way once the turn is history."""
    said: str = ""
    """What the client has begun the turn with, without white space."""
    parent: bytes = b""
    """`mac` of the last turn whose own ids the prompt holds."""
    parent_key: bytes = b""
    parent_end: int = 0
    """Where the text that `parent` stands for ends."""
    joint: str = ""
    """Text between `parent`'s ids and the text behind it: what a turn that was cut off lacks."""


class LedgerEntry(Struct, frozen=True, omit_defaults=True):
    """parser → preprocessors, and the value in the ledger's bucket: one turn that ended."""

    model: str
    key: bytes
    """Chain hash of the conversation up to and including the turn."""
    seat: LedgerSeat
    ids: bytes
    """The turn's tokens as the engine decoded them, packed (`frames.pack_ids`), without the end token."""
    closed: bool = True
    """The model ended the turn itself. Else it was cut off, and lacks what would have closed it."""
    tail: str = ""
    """What the client was shown of the token behind the last of `ids` (a stop string began within it)."""
    in_reasoning: bool = False
    """As in the turn's `ParseContext`; so are `prefix` and `calls_as_text`."""
    prefix: str = ""
    calls_as_text: bool = False
    mac: bytes = b""
    """Of all other fields, with the deployment's seal key; also the entry's identity."""
