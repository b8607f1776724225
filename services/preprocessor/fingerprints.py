"""Compares a prompt with that of an earlier turn that the client names, for the diagnostics of the
APIs.

A fingerprint of each prompt that may be compared is kept for an hour: its token ids, for exact
counts, and digests of the request's parts. It holds no text, belongs to one tenant and cache salt,
and never leaves the process. Pure.
"""

from collections.abc import Callable

from cachetools import TTLCache

from schemas.conversation import Conversation
from schemas.events import PromptComparison
from services.ledger.difference import ComparedPrompt, difference, digests_of
from services.ledger.encode import head_hash
from services.preprocessor.prompt import Prompt
from services.preprocessor.strip import strip_preamble

KEPT_S = 3600.0
MIN_BYTES = 2048
"""Size of a fingerprint without its ids and history, about, which bounds their number."""


class Fingerprint(ComparedPrompt, frozen=True, kw_only=True):
    """One prompt, with the length and hash of its head (`LedgerContext`)."""

    head_chars: int
    head_hash: bytes


class Fingerprints:
    """The fingerprints of one preprocessor, bounded in bytes and time."""

    def __init__(self, max_bytes: int, clock: Callable[[], float], *, strip: bool) -> None:
        """`strip`: prompts are made without billing headers."""
        self._kept: TTLCache[tuple[str | None, ...], Fingerprint] = TTLCache(
            max_bytes, KEPT_S, clock, _size
        )
        self._strip = strip

    def compare(
        self, turn: str, conversation: Conversation, prompt: Prompt
    ) -> PromptComparison | None:
        """Keeps the prompt's fingerprint, and compares it with that of the turn which the request
        names. None if the request names none, or the prompt has no fingerprint: it was sent as
        text, or there is no ledger."""
        other, tenant, salt = (
            conversation.client.compare,
            conversation.client.tenant,
            conversation.hints.cache_salt,
        )
        if other is None or (found := prompt.found) is None or found.context is None:
            return None
        stripped = strip_preamble(conversation) if self._strip else conversation
        now = Fingerprint(
            ids=found.ids,
            digests=digests_of(stripped, prompt.tools),
            states=found.states,
            head_chars=found.context.head_chars,
            head_hash=found.context.head_hash,
        )
        before = self._kept.get((tenant, salt, other))
        if _size(now) <= self._kept.maxsize:
            self._kept[tenant, salt, turn] = now
        if before is None:
            return PromptComparison() if other else None
        if (
            before.head_chars <= len(found.text)
            and head_hash(found.text, before.head_chars) == before.head_hash
        ):
            return PromptComparison(len(before.ids))
        change = difference(before, now)
        return PromptComparison(
            len(before.ids), change.again, [part.where for part in change.changes]
        )


def _size(fingerprint: Fingerprint) -> int:
    return MIN_BYTES + 4 * len(fingerprint.ids) + 64 * len(fingerprint.states)
