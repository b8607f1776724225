"""Compares a prompt with that of an earlier turn that the client names, for the diagnostics of the
APIs.

A fingerprint of each prompt that may be compared is kept for an hour: its token ids, for exact
counts, and digests of the request's parts. It holds no text, belongs to one tenant and cache salt,
and never leaves the process. Prompts are compared before their turns are sent, because the parser
gets the result. (`prompt_changes` compares all prompts of a session, by their texts, for the log
and the metrics; after sending, since no one waits for that.)
"""

from cachetools import TTLCache

from schemas.conversation import Conversation
from schemas.events import PromptComparison
from services.ledger.prompt.encode import HeadHasher
from services.preprocessor.prompt.preamble import strip_preamble
from services.preprocessor.prompt.prompt_maker import Prompt
from services.preprocessor.threads import Clock
from services.prompt_diff.prompts import ComparedPrompt, difference, digests_of

KEPT_S = 3600.0
MIN_BYTES = 2048
"""Size of a fingerprint without its ids and history, about, which bounds their number."""


class Fingerprint(ComparedPrompt, frozen=True, kw_only=True):
    """One prompt, with the length and hash of its head (`LedgerContext`)."""

    head_chars: int
    head_hash: bytes


class Fingerprints:
    """The fingerprints of one preprocessor, bounded in bytes and time."""

    def __init__(self, max_bytes: int, clock: Clock, *, strip: bool) -> None:
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
        named = conversation.client.compare
        encoded = prompt.encoded
        if named is None or encoded.context is None:
            return None

        if self._strip:
            conversation = strip_preamble(conversation)
        now = Fingerprint(
            ids=encoded.ids,
            digests=digests_of(conversation, prompt.tools),
            states=encoded.states,
            head_chars=encoded.context.head_chars,
            head_hash=encoded.context.head_hash,
        )
        owner = (conversation.client.tenant, conversation.hints.cache_salt)
        before = self._kept.get((*owner, named))
        if _size(now) <= self._kept.maxsize:
            self._kept[*owner, turn] = now

        if before is None:
            return PromptComparison() if named else None
        if _begins_with(encoded.marked_text, before):
            return PromptComparison(len(before.ids))
        change = difference(before, now)
        changed = [part.where for part in change.changes]
        return PromptComparison(len(before.ids), change.again, changed)


def _begins_with(marked_text: str, before: Fingerprint) -> bool:
    """Whether a prompt's text begins with the head of an earlier prompt."""
    if before.head_chars > len(marked_text):
        return False
    return HeadHasher(marked_text).hash(before.head_chars) == before.head_hash


def _size(fingerprint: Fingerprint) -> int:
    return MIN_BYTES + 4 * len(fingerprint.ids) + 64 * len(fingerprint.states)
