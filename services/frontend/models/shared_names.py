"""Chooses among models that share a name, such as two versions of one model side by side. Pure.

A session stays with its model while that takes turns, because its KV blocks and its ledger entries
are there. A new session is placed by the models' weights and a hash of the session, so that all
frontends choose the same model. Weights may change while sessions run, so each placement is stored,
and sent to the other frontends. Helpers, and theirs, are placed with the session that their tree of
agents began with.
"""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

import xxhash
from cachetools import LRUCache

from schemas.control import ModelCard
from schemas.conversation import Conversation
from schemas.notices import SessionPlaced
from schemas.session import helper_key, placement_key

ModelFilter: TypeAlias = Callable[[ModelCard], bool]
"""Returns whether a request may be served by a model."""

MAX_SESSIONS = 65_536
"""Placements that are kept; the least recently used ones are dropped."""


class SharedNames:
    """The placements of sessions on models that share names, of one frontend."""

    def __init__(self) -> None:
        self._placements: LRUCache[tuple[str, str], str] = LRUCache(MAX_SESSIONS)
        """The model of a session under a name; under the name "", the session that a helper's tree
        began with."""

    def choose(
        self,
        name: str,
        cards: Sequence[ModelCard],
        conversation: Conversation | None,
        allows: ModelFilter,
    ) -> tuple[ModelCard, list[SessionPlaced]]:
        """Returns the model for a conversation, and the new placements, which the other frontends
        must get. Without a conversation it is the model with the largest weight.

        `cards`: the models that share `name` and take turns. `allows`: one of those that it allows
        is chosen, at least one.
        """
        allowed = [card for card in cards if allows(card)]
        if conversation is None:
            return max(allowed, key=attrgetter("weight")), []
        placed: list[SessionPlaced] = []
        starter = placement_key(conversation)
        root = self._placements.get(("", starter), starter)
        place = self._placements.get((name, root))
        chosen = next((card for card in allowed if card.name == place), None)
        if chosen is None:
            chosen = max(allowed, key=lambda card: _score(card, root))
        # A request that may not use the session's model does not move the session of all others.
        if place is None or all(card.name != place for card in cards):
            place = chosen.name
            placed.append(SessionPlaced(root, name, place))
        helper = helper_key(conversation)
        # Only of a new session, because anyone may claim a parent for another one.
        if helper is not None and self._is_new(name, helper):
            placed.append(SessionPlaced(helper, name, place, root))
        for notice in placed:
            self.apply(notice)
        return chosen, placed

    def _is_new(self, name: str, session: str) -> bool:
        return ("", session) not in self._placements and (name, session) not in self._placements

    def apply(self, notice: SessionPlaced) -> None:
        """Stores where a session was placed, by this or another frontend."""
        self._placements[notice.name, notice.root or notice.id] = notice.model
        if notice.root:
            self._placements["", notice.id] = notice.root


def _score(card: ModelCard, session: str) -> float:
    """Scores a model by weighted rendezvous hashing: each scores best for a share of the sessions
    in proportion to its weight, and a change of one weight moves no session between the others."""
    digest = xxhash.xxh3_64_intdigest(f"{session} {card.name}".encode())
    uniform = (digest + 0.5) / 2.0**64
    return card.weight / -math.log(uniform)
