"""The match of each turn of a conversation in the ledger, or the reason why there is none."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, Message
from services.ledger.turns.chain import Chain, SentTurn
from services.ledger.turns.turn import Turn


class Outcome(StrEnum):
    """The result for one turn of the conversation; for the newest one also a metric's label."""

    NOT_LOOKED_UP = ""
    """There is no ledger, or the client sent a whole prompt."""
    FIRST = "first"
    """There is no earlier turn."""
    UNKNOWN = "unknown"
    """The ledger does not have it."""
    CLIENT = "client"
    """Its client changed it."""
    AMBIGUOUS = "ambiguous"
    """It may be any of several."""
    FOUND = "found"
    """It is restored, and not yet compared with the prompt's text."""
    MOVED = "moved"
    """The text before it changed."""
    TEMPLATE = "template"
    """The template renders it differently."""
    REUSED = "reused"
    """Its original tokens are in the prompt."""


class Match(Struct, frozen=True):
    """The match in the ledger of one turn of a conversation."""

    outcome: Outcome
    turns: Sequence[Turn] = ()
    """They differ in nothing but the prompt before them; empty unless the outcome is FOUND."""
    messages: list[Message] | None = None
    """The turn as the model wrote it; None: it stays as the client sent it."""


class MatchedHistory(Struct, frozen=True):
    """A conversation, and the match of each of its turns."""

    conversation: Conversation
    chain: Chain
    matches: Sequence[Match]
    """One for each turn of the chain."""
    missing: Sequence[bytes] = ()
    """Keys for which the store may lack the right entry, oldest first. If some are added, the
    history is looked up again."""

    @property
    def open_turn(self) -> SentTurn | None:
        """The turn of the model with which the conversation ends, for the model to continue."""
        turns = self.chain.turns
        if turns and turns[-1].end == len(self.conversation.messages):
            return turns[-1]
        return None

    @property
    def answered(self) -> int:
        """The number of the model's turns that another message follows."""
        turns = len(self.chain.turns)
        if self.open_turn is not None:
            turns -= 1
        return turns

    def newest_turn(self) -> Turn | None:
        """The newest answered turn that is restored."""
        for match in reversed(self.matches[: self.answered]):
            if match.turns:
                return match.turns[0]
        return None

    def restored(self) -> Conversation:
        """The conversation with its turns as the model wrote them. A turn that the client changed
        stays as the client sent it; reasoning that the client dropped is restored, unless the
        request asks for dropping."""
        sent = self.conversation.messages
        messages: list[Message] = []
        end = 0
        for turn, match in zip(self.chain.turns, self.matches, strict=True):
            messages += sent[end : turn.first]
            messages += match.messages or sent[turn.first : turn.end]
            end = turn.end
        messages += sent[end:]
        return replace(self.conversation, messages=messages)
