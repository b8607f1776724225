"""Remembers which model and preprocessor made the prompt of an answer, for requests that compare
theirs with it.

A preprocessor compares a prompt with earlier ones of its own, so the frontend prefers the one that
made the earlier prompt. Each frontend sends what it remembers to the others.
"""

import hashlib
from collections.abc import Callable

from cachetools import TTLCache
from msgspec.structs import replace

from schemas.control import PromptSeen
from schemas.conversation import Conversation
from schemas.events import Prepared, PromptComparison
from services.frontend.turns.turn_state import BusTurn

KEPT_S = 3600.0
MAX_TURNS = 65_536


class PromptOrigins:
    """The origins of prompts that may be compared, bounded in number and time."""

    def __init__(self, publish: Callable[[PromptSeen], object], clock: Callable[[], float]) -> None:
        """`publish`: sends a notice to the other frontends."""
        self._publish = publish
        self._origins: TTLCache[str, PromptSeen] = TTLCache(MAX_TURNS, KEPT_S, clock)

    def find(self, conversation: Conversation) -> PromptSeen | None:
        """Returns the origin of the prompt that a conversation's is compared with."""
        return self._origins.get(_key(conversation, conversation.client.compare or ""))

    def note(self, turn: BusTurn, prepared: Prepared) -> Prepared:
        """Notes the origin of a turn's prompt, and returns `prepared` with the final comparison.
        Prompts of two models have nothing in common. An earlier prompt that is not where it was
        made cannot be compared."""
        key, maker = _key(turn.conversation, turn.id), turn.attempt.preprocessor
        notice = PromptSeen(key, turn.card.name, maker, prepared.prompt_tokens)
        self.apply(notice)
        self._publish(notice)
        origin, found = turn.compared, prepared.comparison
        if origin is not None and origin.model != turn.card.name:
            found = PromptComparison(origin.prompt_tokens, origin.prompt_tokens, ["model"])
        elif origin is not None and found is not None and not found.earlier:
            found = None
        return replace(prepared, comparison=found)

    def apply(self, notice: PromptSeen) -> None:
        """Applies a notice."""
        self._origins[notice.id] = notice


def _key(conversation: Conversation, turn: str) -> str:
    """Returns a key that only requests with the same tenant and cache salt find."""
    scope = repr((conversation.client.tenant, conversation.hints.cache_salt, turn))
    return hashlib.blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
