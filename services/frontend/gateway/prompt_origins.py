"""Remembers which model and preprocessor made the prompt of an answer, for requests that compare
theirs with it.

A preprocessor compares a prompt with earlier ones of its own, so the frontend prefers the one that
made the earlier prompt. Each frontend sends what it remembers to the others.
"""

import asyncio
import hashlib

from cachetools import TTLCache
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.events import Prepared, PromptComparison
from schemas.notices import PromptSeen
from services.frontend.gateway.turn_state import BusTurn
from services.frontend.peers import Peers

KEPT_S = 3600.0
MAX_TURNS = 65_536


class PromptOrigins:
    """The origins of prompts that may be compared, bounded in number and time."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        clock = asyncio.get_running_loop().time
        self._origins: TTLCache[str, PromptSeen] = TTLCache(MAX_TURNS, KEPT_S, clock)

    def find(self, conversation: Conversation) -> PromptSeen | None:
        """Returns the origin of the prompt that a conversation's is compared with."""
        return self._origins.get(_key(conversation, conversation.client.compare or ""))

    def note(self, turn: BusTurn, prepared: Prepared) -> Prepared:
        """Notes the origin of a turn's prompt, and returns `prepared` with the final comparison.
        Prompts of two models, or of two adapters, have nothing in common. An earlier prompt that is
        not where it was made cannot be compared."""
        model = turn.card.served_name
        key = _key(turn.conversation, turn.id)
        seen = PromptSeen(key, model, turn.attempt.preprocessor, prepared.prompt_tokens)
        self.apply(seen)
        self._peers.publish(seen)
        return replace(prepared, comparison=_comparison(turn.compared, model, prepared.comparison))

    def apply(self, seen: PromptSeen) -> None:
        """Remembers a prompt, of this or another frontend."""
        self._origins[seen.id] = seen


def _comparison(
    origin: PromptSeen | None, model: str, comparison: PromptComparison | None
) -> PromptComparison | None:
    """Returns the final comparison with the prompt of `origin`, from the preprocessor's."""
    if origin is None:
        return comparison
    if origin.model != model:
        return PromptComparison(origin.prompt_tokens, origin.prompt_tokens, ["model"])
    if comparison is not None and not comparison.earlier:
        return None
    return comparison


def _key(conversation: Conversation, turn: str) -> str:
    """Returns a key that only requests with the same tenant and cache salt find."""
    scope = repr((conversation.client.tenant, conversation.hints.cache_salt, turn))
    return hashlib.blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
