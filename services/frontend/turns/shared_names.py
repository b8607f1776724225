"""Chooses among models that share a name, such as two versions of one model side by side. Pure.

A session stays with its model as long as that takes turns: there its KV blocks are, and its turns in the ledger. A new
session is placed by the models' weights and a hash of the session, so that frontends agree without asking each other.
Weights may change while sessions run, so each placement is remembered, and other frontends get a notice of it.
"""

import math
from collections.abc import Callable, Sequence

import xxhash
from cachetools import LRUCache

from schemas.control import FrontendNotice, ModelCard
from schemas.conversation import Conversation
from schemas.session import placement_key

MAX_SESSIONS = 65_536
"""Placements that are remembered; the least recently used ones are dropped."""


class SharedNames:
    """The sessions of one frontend's shared names."""

    def __init__(self, publish: Callable[[FrontendNotice], object]) -> None:
        """`publish`: sends a notice to the other frontends."""
        self._publish = publish
        self._placed: LRUCache[tuple[str, str], str] = LRUCache(MAX_SESSIONS)

    def choose(self, name: str, cards: Sequence[ModelCard], conversation: Conversation | None) -> ModelCard:
        """Returns the model for a conversation; without one, the model that gets most new sessions.

        `cards`: the models that share `name` and take turns; at least one.
        """
        if conversation is None:
            return max(cards, key=lambda card: card.weight)
        session = placement_key(conversation)
        placed = self._placed.get((name, session))
        for card in cards:
            if card.name == placed:
                return card
        chosen = max(cards, key=lambda card: _score(card, session))
        self._placed[name, session] = chosen.name
        self._publish(FrontendNotice("place", session, name, chosen.name))
        return chosen

    def apply(self, notice: FrontendNotice) -> None:
        """Remembers where another frontend placed a session."""
        self._placed[notice.name, notice.id] = notice.model


def _score(card: ModelCard, session: str) -> float:
    """Weighted rendezvous hashing: a model is the best one for a share of the sessions in proportion to its weight, and
    a change of one weight moves no session between the others."""
    drawn = (xxhash.xxh3_64_intdigest(f"{session} {card.name}".encode()) + 0.5) / 2.0**64
    return card.weight / -math.log(drawn)
