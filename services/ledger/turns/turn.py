"""A turn of the model in the ledger: its entry, and what is made of the entry when a session needs
it."""

from typing import TypeAlias

from msgspec import Struct

from schemas.conversation import Call, Message, Reasoning, Text, Unseal
from schemas.ledger import LedgerEntry
from schemas.token_ids import unpack_array
from services.ledger.turns.keys import add_record, new_hasher
from services.tokenization.segments import TokenIds

TurnPart: TypeAlias = Text | Reasoning | Call


class TurnOutput(Struct, frozen=True):
    """The output of a turn: the text of its original tokens, and the parts in it."""

    text: str
    """The text that the parser received, up to the last part that its client was sent."""
    parts: list[TurnPart]

    @property
    def calls(self) -> list[Call]:
        """The calls among the parts."""
        return [part for part in self.parts if isinstance(part, Call)]


class RestoredTurn(Struct, frozen=True):
    """A turn as the model wrote it, restored for one form in which its client sent it back."""

    message: Message
    sent: list[Message]
    """The turn as the client sent it back."""
    unseal: Unseal
    with_reasoning: bool
    """Whether reasoning was restored that the client did not send."""


class Turn(Struct):
    """One turn of the model. `output` and `restored` are kept for the session's next requests,
    which need both again."""

    entry: LedgerEntry
    content: bytes
    """Digest of what the model wrote in this turn and in the earlier ones of its session. Turns
    with equal digests differ in nothing but the prompt before them, and in what shows which session
    they are of: ids, seals and the session id."""
    output: TurnOutput | None = None
    """None until it is read from the entry."""
    unreadable: bool = False
    """The entry's ids are not tokens of this model, or parse to a turn with another key."""
    restored: RestoredTurn | None = None

    @classmethod
    def of(cls, entry: LedgerEntry) -> "Turn":
        """The turn with this entry."""
        context = entry.context
        previous = context.previous_turn
        hasher = new_hasher(previous.content if previous is not None else b"")
        flags = f"{entry.closed} {entry.in_reasoning} {entry.calls_as_text}"
        add_record(hasher, "turn", flags, context.started, entry.prefix, entry.tail)
        hasher.update(entry.ids)
        return cls(entry, hasher.digest())

    def ids(self, count: int = 0) -> TokenIds:
        """The turn's ids, or the first `count` of them. Raises ValueError for damaged ids."""
        return unpack_array(self.entry.ids)[: count or None]
