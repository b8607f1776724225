"""Chooses among models that share a name, such as two versions of one model side by side. Pure.

A session stays with its model while that takes turns, because its KV blocks and its ledger entries are there. A new
session is placed by the models' weights and a hash of the session, so that all frontends choose the same model. Weights
may change while sessions run, so each placement is stored, and sent to the other frontends.
"""

import math
from collections.abc import Callable, Sequence

import xxhash
from cachetools import LRUCache

from schemas.control import FrontendNotice, ModelCard
from schemas.conversation import Conversation
from schemas.session import placement_key

MAX_SESSIONS = 65_536
"""Placements that are kept; the least recently used ones are dropped."""


class SharedNames:
    """The placements of sessions on models that share names, of one frontend."""

    def __init__(self, publish: Callable[[FrontendNotice], object]) -> None:
        """`publish`: sends a notice to the other frontends."""
        self._publish = publish
        self._placements: LRUCache[tuple[str, str], str] = LRUCache(MAX_SESSIONS)

    def choose(self, name: str, cards: Sequence[ModelCard], conversation: Conversation | None) -> ModelCard:
        """Returns the model for a conversation; without a conversation, the model with the largest weight.

        `cards`: the models that share `name` and take turns, at least one.
        """
        if conversation is None:
            return max(cards, key=lambda card: card.weight)
        session = placement_key(conversation)
        previous = self._placements.get((name, session))
        for card in cards:
            if card.name == previous:
                return card
        chosen = max(cards, key=lambda card: _score(card, session))
        self._placements[name, session] = chosen.name
        self._publish(FrontendNotice("place", session, name, chosen.name))
        return chosen

    def apply(self, notice: FrontendNotice) -> None:
        """Stores where another frontend placed a session."""
        self._placements[notice.name, notice.id] = notice.model


def _score(card: ModelCard, session: str) -> float:
    """Scores a model by weighted rendezvous hashing: each scores best for a share of the sessions in proportion to its
    weight, and a change of one weight moves no session between the others."""
    uniform = (xxhash.xxh3_64_intdigest(f"{session} {card.name}".encode()) + 0.5) / 2.0**64
    return card.weight / -math.log(uniform)
